"""Measure one point: load from inside the serving container, believed only when counts and identity are proven."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_pipeline.benchmark.native import NativeResult, parse
from spark_pipeline.benchmark.plan import Run
from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.benchmark.sight import Sighting, other_requests, prefix_cache_hit_rate, refuse_changes, sight
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import BenchmarkError, MachineError
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import Completed

_TAIL_LINES = 15
_TABLE_LINE = re.compile(r"[=-]{4,}|[A-Z].*:\s+[\d.]+\s*$")
_TIMED_OUT = 124  # what `timeout` says
# Its own words hold the file's name only on standard input: it must not find itself. Nothing of the tool needs a clean
# end. A process that ended meanwhile, or that is somebody else's, is passed over.
_END_PROGRAM = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").iterdir():
    try:
        if entry.name.isdecimal() and {name!r} in (entry / "cmdline").read_bytes():
            os.kill(int(entry.name), signal.SIGKILL)
    except OSError:
        continue
"""


@dataclass(frozen=True)
class Measured:
    """One run that may be believed.

    Args:
        native_text: the tool's own JSON.
        after: the deployment as it was seen afterwards, which is the next run's `before`.
    """

    run: Run
    started_at: datetime
    native: NativeResult
    native_text: str
    before: Sighting
    after: Sighting


def measure(connection: FleetConnection, generation: Generation, run: Run, before: Sighting) -> Measured:
    """Put the load of `run` on the endpoint.

    Raises:
        BenchmarkError: the tool failed or hung, a request failed, a number is missing, or a container was restarted.
    """
    head = generation.head
    docker = Docker(connection.host(head.node))
    started_at = datetime.now(UTC)
    try:
        done = _load(docker, head.container, run)
        _refuse_failure(done, run)
        text = docker.exec(head.container, ("cat", run.result_file), timeout=60).stdout
        try:
            native = parse(text, run.point)
        except BenchmarkError as error:
            raise _with(error, f"{error.observed}\n{_tail(done)}") from error
    except BenchmarkError as error:
        log = _engine_log(docker, head.container)
        raise _with(error, f"{error.observed}\nengine's log ends:\n{log}", node=head.node) from error
    finally:
        to_the_end(lambda: _remove(docker, head.container, run.result_file))
    after = sight(connection, generation)
    refuse_changes(before, after)
    return Measured(run, started_at, native, text, before, after)


def to_point(generation: Generation, measured: Measured, *, run_id: str, native_file: str) -> BenchmarkPoint:
    """The numbers together with everything that produced them."""
    native, run = measured.native, measured.run
    before, after = measured.before.endpoint, measured.after.endpoint
    return BenchmarkPoint(
        deployment=generation.deployment,
        fleet=generation.fleet,
        nodes=tuple(rank.node for rank in generation.ranks),
        generation=generation.number,
        spec_hash=generation.spec_hash,
        repo=generation.repo,
        commit=generation.commit,
        image_declared=generation.image_declared,
        image_reference=generation.image_reference,
        image_fingerprint=generation.image_fingerprint,
        image_digest=generation.image_digest,
        vllm_version=generation.engine["vllm"],
        ray_version=generation.engine.get("ray"),
        torch_version=generation.engine.get("torch"),
        transformers_version=generation.engine.get("transformers"),
        python_version=generation.engine.get("python"),
        backend=generation.backend,
        tensor=generation.tensor,
        pipeline=generation.pipeline,
        max_model_len=generation.max_model_len,
        serve_args=generation.serve_args,
        profile=run.profile,
        input_tokens=run.point.input_tokens,
        output_tokens=run.point.output_tokens,
        concurrency=run.point.concurrency,
        requests=run.point.requests,
        seed=run.seed,
        # The tool is a part of vLLM and ran in the engine's own container.
        tool_version=generation.engine["vllm"],
        started_at=measured.started_at,
        duration_seconds=native.duration,
        run_id=run_id,
        native_file=native_file,
        completed=native.completed,
        failed=native.failed,
        input_tokens_total=native.total_input_tokens,
        output_tokens_total=native.total_output_tokens,
        output_tokens_per_second=native.output_throughput,
        total_tokens_per_second=native.total_token_throughput,
        requests_per_second=native.request_throughput,
        ttft_ms=native.ttft_ms,
        tpot_ms=native.tpot_ms,
        itl_ms=native.itl_ms,
        e2e_ms=native.e2el_ms,
        prefix_cache_hit_rate=prefix_cache_hit_rate(before, after),
        other_requests=other_requests(before, after, run.point.requests),
    )


def _load(docker: Docker, container: str, run: Run) -> Completed:
    """The load generator, to its end. Whoever cancels it (or loses the way to it) ends it in the container too."""
    try:
        return docker.exec(container, run.argv, timeout=run.timeout_seconds + 60, check=False)
    except BaseException:
        # Ending `docker exec` does not end what it started: the engine would be kept busy for up to the run's time-out.
        with suppress(MachineError):  # what happened first is what is told
            end = ("python3", "-")
            to_the_end(lambda: docker.exec(container, end, input=end_program(run), timeout=30, check=False))
        raise


def end_program(run: Run) -> str:
    """Ends, inside the container, every process whose command line names this run's result file."""
    return _END_PROGRAM.format(name=Path(run.result_file).name.encode())


def _refuse_failure(done: Completed, run: Run) -> None:
    if done.status == _TIMED_OUT:
        raise BenchmarkError(
            f"{run.title}: did not end within {run.timeout_seconds} s",
            observed=_tail(done),
            remedy="see the engine's log: fewer than one token a second for each stream is taken for hung",
        )
    if done.status != 0:
        raise BenchmarkError(
            f"{run.title}: the load generator ended with status {done.status}",
            observed=_tail(done),
            remedy="read its words above; 127 means that the image has no `vllm` on its PATH",
        )


def _tail(done: Completed) -> str:
    """The tool's last words, without its table of numbers: they are what is not believed."""
    lines = (done.stdout + "\n" + done.stderr).splitlines()
    words = [line[:300] for line in lines if line.strip() and not _TABLE_LINE.match(line)]
    return "\n".join(words[-_TAIL_LINES:])


def _engine_log(docker: Docker, container: str) -> str:
    try:
        return docker.logs(container, _TAIL_LINES).strip()
    except MachineError as error:
        return f"cannot be read: {error.what}"


def _remove(docker: Docker, container: str, file: str) -> None:
    """Some kB in the container's /tmp: leaving them is no reason to lose a measurement or to hide an error."""
    try:
        docker.exec(container, ("rm", "-f", file), timeout=30, check=False)
    except MachineError:
        return


def _with(error: BenchmarkError, observed: str, *, node: str | None = None) -> BenchmarkError:
    return BenchmarkError(error.what, node=node or error.node, observed=observed, remedy=error.remedy)
