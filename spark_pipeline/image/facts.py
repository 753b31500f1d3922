"""What an image is, asked of the image itself in one short-lived container, once for each image."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from spark_pipeline.errors import CommandTimeoutError, ImageError, ImageSilentError, SparkPipelineError, StateError
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Completed, Host
from spark_pipeline.fleet.progress import Progress, heartbeat
from spark_pipeline.image import inspect_program, probe_program
from spark_pipeline.image.answer import PROBE_VERSION, Inspection, ProbeResult
from spark_pipeline.image.reading import by_hand, read_answer, read_inspections
from spark_pipeline.image.root_cause import not_now
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project

# A cold 30 GB image on a slow disk: half a minute to its first Python line was seen, never more than one.
_PROBE_SECONDS = 300
# Importing vLLM and inspecting a class take 4 and 7 s on a quiet machine (shared/facts/vllm_cpu.md part 4), minutes
# where 30 GB come from a slow disk for the first time. The programs in the container keep to it by themselves.
_STEP_SECONDS = 300
# On every container of a probe: the Unix time after which nobody waits for it any more. A container that is older was
# left behind by an orchestrator that died; the clocks of two orchestrators may differ by the grace.
LABEL = "spark_pipeline.probe"
_GRACE_SECONDS = 600
# CPU and GPU of a Spark share their memory, and an engine that serves leaves little of it: a probe may take no more
# than this, and should the node still have too little, it is what the kernel ends first.
_MEMORY = "8g"
_LIMITS = ("--memory", _MEMORY, "--memory-swap", _MEMORY, "--oom-score-adj", "1000")
# Of `docker run`: the engine's own failure, and a container that somebody or the kernel ended (128 + HUP, INT, KILL,
# TERM). Neither is the image's fault, as a Python that crashes by itself is.
_ENGINE_REFUSED, _KILLED = 125, (129, 130, 137, 143)
# Where images keep a Python that is not on their PATH; $@ are its arguments.
_FIND_PYTHON = (
    "for p in /opt/*/bin/python3 /opt/*/envs/*/bin/python3 /usr/local/*/bin/python3 /root/*/bin/python3 "
    '/*venv*/bin/python3 /*/*venv*/bin/python3; do test -x "$p" && exec "$p" "$@"; done; '
    "echo 'no python3 in any of the usual places' >&2; exit 127"
)


def probe_command(
    reference: str,
    container: str,
    architectures: Sequence[str] = (),
    *,
    until: int,
    python: str = "python3",
    known: bool = False,
) -> tuple[str, ...]:
    """`docker run` of the probe: the image's own entrypoint replaced, no GPU, no network, gone when it ends.

    `-w /`: some images declare a work directory that is missing or not theirs. The entrypoint of a serving image may
    start serving whatever it is given (shared/scenario.md), so it never runs.

    Args:
        architectures: that its vLLM is asked for.
        until: see LABEL.
        python: the entrypoint instead of the image's own.
        known: the image's facts are known: only its vLLM is asked.
    """
    programs = [_program(inspect_program)] if known else [_program(probe_program), _program(inspect_program)]
    words = ("-c", probe_program.BOOT, *programs, str(_STEP_SECONDS), *architectures)
    return (*_run(reference, container, python, until), *words)


def cached(project: Project, fingerprint: str) -> ProbeResult | None:
    """What is known of this image from before. An answer of another version of the probe counts as none."""
    try:
        return store.read(_file(project, fingerprint), ProbeResult)
    except StateError:
        return None


def probe(
    host: Host, image: ImageFacts, project: Project, progress: Progress, wanted: Wanted | None = None
) -> ProbeResult:
    """Ask an image that `host` holds; what it was asked before is not asked again.

    Args:
        wanted: have the image's vLLM inspect these architectures; None: only what the image is.

    Raises:
        ImageError: no Python, no vLLM, or no program `vllm` in the image, or its Python does not work.
        ImageSilentError: the image gave no answer now (too slow, killed, no room): nothing is known of it.
        MachineError: the node could not be asked.
    """
    architectures = wanted.architectures if wanted else ()
    known = cached(project, image.fingerprint)
    missing = tuple(name for name in architectures if known is None or name not in known.inspections)
    if known is not None and not missing:
        return known
    if known is None:
        said = _ask(host, image, missing, progress)
        answer = read_answer(said, reference=image.reference, architecture=image.architecture)
    else:
        said = _ask(host, image, missing, progress, python=known.answer.python)
        answer = known.answer
    found = read_inspections(said, missing, for_gpus=answer.engine.cuda is not None)
    before: dict[str, Inspection] = dict(known.inspections) if known else {}
    _keep(project, image.fingerprint, ProbeResult(answer=answer, inspections={**before, **found}))
    return ProbeResult(answer=answer, inspections={**before, **found})


def _ask(
    host: Host, image: ImageFacts, architectures: Sequence[str], progress: Progress, *, python: str | None = None
) -> str:
    """What the container printed.

    Args:
        python: of an image whose facts are known, the one that has its vLLM.
    """
    what = f"asking {image.reference} on {host.name} what engine it has"
    if architectures:
        what = f"asking {image.reference} on {host.name} about {', '.join(architectures)}"
    timeout = _PROBE_SECONDS + _STEP_SECONDS * (len(architectures) + 1 if architectures else 0)
    until = int(time.time() + 2 * timeout + _GRACE_SECONDS)  # twice: it may be asked again through a shell
    argv = probe_command(
        image.image_id,
        _container(),
        architectures,
        until=until,
        python=python or "python3",
        known=python is not None,
    )
    with heartbeat(what, progress):
        _remove_left_behind(host, progress)
        done = _in_container(host, image, argv, timeout)
        if python is None and _has_no_program(done):
            # Some images keep their Python off PATH, and call it by its full name.
            shell = (*_run(image.image_id, _container(), "sh", until), "-c", _FIND_PYTHON, "sh")
            again = _in_container(host, image, (*shell, *argv[argv.index("-c") :]), timeout)
            done = done if _has_no_program(again) and not _is_shells(again) else again
    if done.status in _KILLED and (python is not None or probe_program.MARKER in done.stdout):
        return done.stdout  # what it said before it was killed is true
    if done.status != 0:
        raise _refused(host, image, done)
    return done.stdout


def _in_container(host: Host, image: ImageFacts, argv: Sequence[str], timeout: float) -> Completed:
    try:
        return host.run(argv, timeout=timeout, check=False)
    except BaseException as error:
        raised = error
        if isinstance(error, CommandTimeoutError):
            raised = ImageSilentError(
                f"{image.reference} does not answer",
                node=host.name,
                observed=f"its Python was asked what it has, and did not end within {timeout:.0f} s",
                remedy=f"{by_hand(image.reference)} on {host.name} must end at once; a Python that is wrapped, or a "
                "sitecustomize.py that waits, does not; a node that is busy may answer later",
            )
        try:
            # Ending `docker run` does not end its container.
            to_the_end(lambda: Docker(host).remove([argv[argv.index("--name") + 1]]))
        except SparkPipelineError as left:
            raised.add_note(f"and its container could not be removed, which the next probe does: {left}")
        if raised is error:
            raise
        raise raised from error


def _remove_left_behind(host: Host, progress: Progress) -> None:
    """Containers of probes whose orchestrator died; what another run still waits for stays."""
    for container in Docker(host).containers({LABEL: ""}):
        until = container.labels[LABEL]
        if until.isdecimal() and int(until) < time.time():
            progress(f"removing {container.name} on {host.name}: a probe that nobody waits for any more")
            try:
                Docker(host).remove([container.name])
            except SparkPipelineError as error:
                progress(str(error))


def _run(reference: str, container: str, entrypoint: str, until: int) -> tuple[str, ...]:
    return (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", *_LIMITS, "--name", container),
        *("--label", f"{LABEL}={until}", "-w", "/", "--entrypoint", entrypoint, reference),
    )


def _container() -> str:
    return f"sp-probe-{uuid.uuid4().hex[:12]}"


def _file(project: Project, fingerprint: str) -> Path:
    """Facts are an image's, not a deployment's: two deployments of one image ask it once."""
    return project.root / "data" / "state" / "images" / f"{fingerprint}-v{PROBE_VERSION}.json"


def _keep(project: Project, fingerprint: str, result: ProbeResult) -> None:
    """Write down what would be answered again; what other versions of the probe left of this image goes."""
    now = cached(project, fingerprint)  # another run may have asked meanwhile
    before = now.inspections if now else {}
    final = {name: one for name, one in result.inspections.items() if one.final}
    file = _file(project, fingerprint)
    store.write(file, ProbeResult(answer=result.answer, inspections={**before, **final}))
    for other in file.parent.glob(f"{fingerprint}*.json"):
        if other != file:
            other.unlink(missing_ok=True)


def _program(module: object) -> str:
    return Path(getattr(module, "__file__", "")).read_text(encoding="utf-8")


def _has_no_program(done: Completed) -> bool:
    """Docker found no such entrypoint, or the shell that looked for a Python found none."""
    return done.status == 127 or "executable file not found" in done.stderr


def _is_shells(done: Completed) -> bool:
    return "no python3 in any of the usual places" in done.stderr


def _refused(host: Host, image: ImageFacts, answer: Completed) -> ImageError:
    said = (answer.stderr or answer.stdout).strip()[-800:]
    kind, what = ImageError, "could not be asked what engine it has"
    if _has_no_program(answer):
        remedy = "name an image with python3 on its PATH under image.candidates: vLLM needs one"
    elif "exec format error" in said:
        remedy = f"this is an {image.architecture} image: name one for the architecture of {host.name}"
    elif answer.status in _KILLED or not_now(said):
        kind, what = ImageSilentError, "gave no answer now"
        remedy = (
            f"free -h; df -h; docker ps on {host.name} show what it lacks (the probe itself may use {_MEMORY} of "
            "memory); make room, then run this again"
        )
    elif answer.status == _ENGINE_REFUSED:
        kind, what = ImageSilentError, "could not be started"
        remedy = f"journalctl -u docker -n 50 on {host.name} says why; {by_hand(image.reference)} shows it again"
    else:
        remedy = f"{by_hand(image.reference)} on {host.name} shows it again"
    return kind(
        f"{image.reference} {what}",
        node=host.name,
        observed=f"status {answer.status}: {said or 'it printed nothing'}",
        remedy=remedy,
    )
