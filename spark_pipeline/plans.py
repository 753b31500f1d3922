"""Every stage's plan of one deployment, from what the machines say now or from what was written down of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from spark_pipeline.benchmark import stage as benchmark
from spark_pipeline.cluster import stage as cluster
from spark_pipeline.cluster.plan import Running
from spark_pipeline.cluster.plan import plan as plan_cluster
from spark_pipeline.cluster.target import build_target
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.compatibility.judge import Asked, judged
from spark_pipeline.compatibility.stage import wanted_of
from spark_pipeline.errors import CompatibilityError, StateError
from spark_pipeline.fleet import facts as node_facts
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import ImageFacts, parse_image
from spark_pipeline.fleet.fabric import fabric_ssh
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import stage as image
from spark_pipeline.image.answer import ProbeResult
from spark_pipeline.image.candidates import Candidate
from spark_pipeline.image.choice import ImageChoice
from spark_pipeline.image.plan import Holding, ImagePlan, names_of
from spark_pipeline.image.plan import describe as describe_image
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.strategy import Judged
from spark_pipeline.image.transfer import transfer
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage as weights
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.model_facts import ModelFacts
from spark_pipeline.weights.node.messages import AbsentFile, Report
from spark_pipeline.weights.plan import plan as plan_weights
from spark_pipeline.weights.record import WeightsRecord

R = TypeVar("R", bound=Record)


def observed_plans(session: Session) -> tuple[StagePlan, ...]:
    """What `ensure` of every stage would do now; later stages are planned from what earlier ones wrote down last."""
    compatible = compatibility.plan(session)
    first = (compatible.plan, weights.plan(session), _image_plan(session, compatible.choice))
    try:
        planned = cluster.plan(session)
    except StateError as error:
        later = ("ray_cluster", "serving_endpoint", "benchmark_results")
        return *first, *(StagePlan(stage, True, (f"cannot be planned yet: {error.what}",)) for stage in later)
    return *first, planned.describe(), serving.describe(planned.generation), benchmark.plan(session)


def recorded_plans(project: Project, deployment: str, directory: Path) -> tuple[StagePlan, ...]:
    """The plans for machines as they were recorded, holding no weights, with the images on the head alone.

    Args:
        directory: <node>.txt (`fleet facts --record`); manifest.json (as under data/state/<deployment>); model.json (as
            under data/state/models); for the n-th candidate, counted from 0, image_<n>.json (`docker image inspect
            --format '{{json .}}' IMAGE` on the head) and probe_<n>.json (as under data/state/images). A candidate
            without the two is not on the head.

    Raises:
        StateError: a recording is missing.
        CompatibilityError: no candidate can serve the model.
    """
    declared = project.deployment(deployment)
    fleet = project.fleet(declared.fleet)
    with FleetConnection(fleet, project.known_hosts) as unused:
        session = Session(project, declared, unused, progress=lambda _: None, run_id="recorded")
        facts = {
            node.name: node_facts.parse(node.name, _text(directory / f"{node.name}.txt")) for node in session.nodes
        }
        manifest = _record(directory / "manifest.json", Manifest)
        model = _record(directory / "model.json", ModelFacts)
        wanted = wanted_of(model)
        asked = [_recorded_candidate(directory, n, name, wanted) for n, name in enumerate(declared.image.candidates)]
        compatible = compatibility.decide(session, model, tuple(facts.values()), asked, occupied=False)
        if compatible.choice is None:
            raise CompatibilityError(
                compatible.report.problem,
                observed="\n".join(compatible.plan.reasons),
                remedy=compatible.report.remedy,
            )
        on_head, answer = next(
            (item.candidate.on_head, item.judged.answer)
            for item in asked
            if item.declared == compatible.choice.declared
        )
        assert on_head is not None
        assert answer is not None
        weights_plan, weights_record = _weights(session, facts, manifest)
        image_plan = _recorded_image_plan(session, compatible.choice, on_head, answer.engine)
        record = image.image_record(session, compatible.choice, on_head, answer.engine)
        target = build_target(declared, fleet, session.nodes, weights_record, record)
        nothing = Running(())
        planned = plan_cluster(target, facts, nothing, joined=None, others=(), last_number=0, run_id=session.run_id)
        later = (serving.describe(planned.generation), benchmark.describe(project, declared, planned.generation))
    return compatible.plan, weights_plan, image_plan, planned.describe(), *later


def _image_plan(session: Session, choice: ImageChoice | None) -> StagePlan:
    if choice is None:
        return StagePlan("vllm_image", True, ("cannot be planned yet: no image is decided on",))
    return image.plan(session, choice)


def _recorded_candidate(directory: Path, number: int, declared: str, wanted: Wanted) -> Asked:
    path = directory / f"image_{number}.json"
    if not path.exists():
        return Asked(
            Candidate(declared, None, None), Judged(declared, waits="not on the head, and no registry was asked")
        )
    on_head = parse_image(declared, _text(path))
    result = _record(directory / f"probe_{number}.json", ProbeResult)
    digest = Reference.parse(declared).digest_among(on_head.repo_digests)
    return Asked(Candidate(declared, digest, on_head), judged(declared, result, wanted))


def _weights(session: Session, facts: dict[str, NodeFacts], manifest: Manifest) -> tuple[StagePlan, WeightsRecord]:
    directory = f"{session.fleet.weights_dir}/{manifest.repo}/{manifest.commit}"
    absent = tuple(AbsentFile(file.path, 0) for file in manifest.files)
    reports = {
        name: Report(free_bytes=node.weights_free_bytes, has_rsync=node.rsync, absent=absent)
        for name, node in facts.items()
    }
    record = WeightsRecord(
        repo=manifest.repo,
        revision=session.deployment.model.revision,
        commit=manifest.commit,
        directory=directory,
        size_bytes=manifest.size_bytes,
        files=len(manifest.files),
        manifest_sha256=manifest.sha256,
        run_id=session.run_id,
        verified_at=datetime.now(UTC),
    )
    return weights.printable(plan_weights(manifest, directory, reports)), record


def _recorded_image_plan(session: Session, choice: ImageChoice, on_head: ImageFacts, engine: EngineFacts) -> StagePlan:
    """The head holds the candidate under its declared name, the peers hold nothing."""
    names, head = names_of(choice, on_head), session.fleet.head
    peers = [node for node in session.nodes if node != head]
    holdings = [Holding(head.name, on_head.reference, names[:1])]
    holdings += [Holding(peer.name, None, names, transfer(peer.name, on_head, (), ())) for peer in peers]
    ways = {peer.name: fabric_ssh(session.fleet, peer) for peer in peers}
    return describe_image(ImagePlan(choice, on_head, tuple(holdings), engine), head.name, ways)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _missing(path) from error


def _record(path: Path, kind: type[R]) -> R:
    record = store.read(path, kind)
    if record is None:
        raise _missing(path)
    return record


def _missing(path: Path) -> StateError:
    return StateError(
        f"recording {path} is missing",
        remedy="`spark-pipeline fleet facts FLEET --record DIR` writes the nodes'; `spark-pipeline plan --help` names "
        "the others",
    )
