"""Stage benchmark_results: every point of the deployment's profiles, measured once for what is serving now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.benchmark.history import append, newest, read
from spark_pipeline.benchmark.plan import STAGE, BenchmarkPlan, plan_benchmark, shape
from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.benchmark.run import Measured, measure, to_point
from spark_pipeline.benchmark.sight import sight
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.progress import heartbeat, human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving.record import find_record, read_record
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.project import Project
from spark_pipeline.spec.store import write_text

# Random prompts share no beginning; a hit rate above this means that the cache answered, not the model.
_SUSPICIOUS_HIT_RATE = 0.05


@dataclass(frozen=True)
class BenchmarkResult:
    """What is known of the serving generation's speed.

    Args:
        changed: whether anything was measured now.
        measured: how many points were.
        points: one for each point of the profiles, in their order, newest measurement.
    """

    deployment: str
    changed: bool
    measured: int
    points: tuple[BenchmarkPoint, ...]
    history_file: Path
    plan: StagePlan
    seconds: float


def plan(session: Session) -> StagePlan:
    """What `ensure` would run. Asks no machine and changes nothing."""
    record = find_record(session.project, session.deployment.name)
    return describe(session.project, session.deployment, record.generation if record else None)


def describe(project: Project, deployment: Deployment, generation: Generation | None) -> StagePlan:
    """What would be measured on `generation`; None: nothing is known of it yet. The seeds are examples: each run
    draws new ones."""
    profiles = project.profiles_of(deployment)
    if generation is None:
        count = sum(len(profile.points) for profile in profiles)
        reason = f"nothing serves yet; as soon as it does, {count} points of {len(profiles)} profiles are measured"
        return StagePlan(stage=STAGE, changes=count > 0, reasons=(reason,))
    history = read(project.benchmarks_file(deployment.name))
    return plan_benchmark(generation, profiles, history, salt="example").stage_plan()


def ensure(session: Session, *, force: bool = False) -> BenchmarkResult:
    """Measure the points that the serving generation's spec lacks; with `force`, every point again.

    Each point is on disk as soon as it is proven, so a failure loses only the point that failed.

    Raises:
        StateError: nothing is recorded as serving.
        BenchmarkError: what serves is not what is recorded, or a measurement may not be trusted.
        MachineError: a node cannot be reached or refuses.
    """
    started = time.monotonic()
    generation = read_record(session).generation
    profiles = session.project.profiles_of(session.deployment)
    history_file = session.project.benchmarks_file(session.deployment.name)
    salt = f"{session.run_id}/{time.time_ns()}"
    plan = plan_benchmark(generation, profiles, read(history_file), salt=salt, force=force)
    if plan.runs:
        _measure_all(session, plan)
    else:
        session.progress(f"benchmark: {plan.reasons[0]}; nothing to do")
    current = [point for point in read(history_file) if point.spec_hash == generation.spec_hash]
    latest = {point.shape: point for point in newest(current)}
    wanted = dict.fromkeys(shape(profile.name, point) for profile in profiles for point in profile.points)
    return BenchmarkResult(
        deployment=session.deployment.name,
        changed=bool(plan.runs),
        measured=len(plan.runs),
        points=tuple(latest[key] for key in wanted if key in latest),
        history_file=history_file,
        plan=plan.stage_plan(),
        seconds=time.monotonic() - started,
    )


def _measure_all(session: Session, plan: BenchmarkPlan) -> None:
    started = time.monotonic()
    before = sight(session.connection, plan.generation)
    if plan.warm_up:
        with heartbeat(f"benchmark: warm-up, concurrency {plan.warm_up.point.concurrency}", session.progress):
            before = measure(session.connection, plan.generation, plan.warm_up, before).after
    for number, run in enumerate(plan.runs, start=1):
        with heartbeat(f"benchmark: point {number} of {len(plan.runs)}: {run.title}", session.progress):
            measured = measure(session.connection, plan.generation, run, before)
        point = _keep(session, plan.generation, measured)
        elapsed = human_seconds(time.monotonic() - started)
        session.progress(f"benchmark: point {number} of {len(plan.runs)}: {_said(point)}; {elapsed} so far")
        before = measured.after


def _keep(session: Session, generation: Generation, measured: Measured) -> BenchmarkPoint:
    """The tool's own file first, then the line that names it: a line never names a file that is not there."""
    history_file = session.project.benchmarks_file(session.deployment.name)
    name = f"{measured.started_at:%Y%m%dT%H%M%SZ}_{measured.run.profile}_{measured.run.seed}.json"
    native_file = Path(history_file.stem) / name
    write_text(history_file.parent / native_file, measured.native_text)
    point = to_point(generation, measured, run_id=session.run_id, native_file=str(native_file))
    append(history_file, point)
    return point


def _said(point: BenchmarkPoint) -> str:
    words = f"{point.output_tokens_per_second:.1f} output tokens/s, TTFT p95 {point.ttft_ms.p95:.1f} ms"
    if point.tpot_ms:
        words += f", TPOT p50 {point.tpot_ms.p50:.2f} ms"
    if point.other_requests:
        words += f"; beside {point.other_requests} requests of others: not comparable"
    if point.prefix_cache_hit_rate is not None and point.prefix_cache_hit_rate > _SUSPICIOUS_HIT_RATE:
        words += f"; {100 * point.prefix_cache_hit_rate:.0f} % of the prompts came from the prefix cache"
    return words
