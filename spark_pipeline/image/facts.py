"""What an image is, asked of the image itself in one short-lived container, once for each image."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from spark_pipeline.errors import CommandTimeoutError, ImageError, StateError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Completed, Host, shell_text
from spark_pipeline.fleet.progress import Progress, heartbeat
from spark_pipeline.image import inspect_program, probe_program, reading, registry_source, root_cause, source_tables
from spark_pipeline.image.answer import Inspection, ProbeResult
from spark_pipeline.image.reading import by_hand, read_answer, read_inspections
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project

# A cold 30 GB image on a slow disk: half a minute to its first Python line was seen, never more than one.
_PROBE_SECONDS = 300
# Importing vLLM and inspecting a class take 4 and 7 s on a quiet machine (shared/facts/vllm_cpu.md part 4), minutes
# where 30 GB come from a slow disk for the first time. The programs in the container keep to it by themselves.
_STEP_SECONDS = 300
LABEL = "spark_pipeline.probe"
# An answer is as good as the modules that ask for it and read it: when one of them changes, images are asked anew.
_ASKED_BY = (probe_program, inspect_program, reading, registry_source, root_cause, source_tables)
# Where images keep a Python that is not on their PATH; $@ are its arguments.
_FIND_PYTHON = (
    "for p in /opt/*/bin/python3 /opt/*/envs/*/bin/python3 /usr/local/*/bin/python3 /root/*/bin/python3 "
    '/*venv*/bin/python3 /*/*venv*/bin/python3; do test -x "$p" && exec "$p" "$@"; done; '
    "echo 'no python3 in any of the usual places' >&2; exit 127"
)


def probe_command(
    reference: str, container: str, architectures: Sequence[str] = (), *, python: str = "python3", known: bool = False
) -> tuple[str, ...]:
    """`docker run` of the probe: the image's own entrypoint replaced, no GPU, no network, gone when it ends.

    `-w /`: some images declare a work directory that is missing or not theirs. The entrypoint of a serving image may
    start serving whatever it is given (shared/scenario.md), so it never runs.

    Args:
        architectures: that its vLLM is asked for.
        python: the entrypoint instead of the image's own.
        known: the image's facts are known: only its vLLM is asked.
    """
    programs = [_program(inspect_program)] if known else [_program(probe_program), _program(inspect_program)]
    words = ("-c", probe_program.BOOT, *programs, str(_STEP_SECONDS), *architectures)
    return (*_run(reference, container, python), *words)


def shown_command(argv: Sequence[str]) -> str:
    """A probe's command as a person would type it: the programs by the names of their files."""
    text = shell_text(argv)
    for module in (probe_program, inspect_program):
        name = Path(module.__file__ or "").name
        text = text.replace(shell_text([_program(module)]), f'"$(cat spark_pipeline/image/{name})"')
    return text


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
        ImageError: no Python, no vLLM, or no program `vllm` in the image, or its Python does not answer.
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
    before: dict[str, Inspection] = dict(known.inspections) if known else {}
    found = read_inspections(said, missing)
    store.write(_file(project, image.fingerprint), ProbeResult(answer=answer, inspections={**before, **found.final}))
    return ProbeResult(answer=answer, inspections={**before, **found.by_architecture})


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
    argv = probe_command(
        image.image_id, _container(), architectures, python=python or "python3", known=python is not None
    )
    with heartbeat(what, progress):
        done = _in_container(host, image, argv, timeout)
        if python is None and _has_no_program(done):
            # Some images keep their Python off PATH, and call it by its full name.
            shell = (*_run(image.image_id, _container(), "sh"), "-c", _FIND_PYTHON, "sh")
            again = _in_container(host, image, (*shell, *argv[argv.index("-c") :]), timeout)
            done = done if _has_no_program(again) and not _is_shells(again) else again
    if done.status != 0:
        raise _refused(host, image, done)
    return done.stdout


def _in_container(host: Host, image: ImageFacts, argv: Sequence[str], timeout: float) -> Completed:
    try:
        return host.run(argv, timeout=timeout, check=False)
    except BaseException as error:
        # Ending `docker run` does not end its container.
        Docker(host).remove([argv[argv.index("--name") + 1]])
        if isinstance(error, CommandTimeoutError):
            raise ImageError(
                f"{image.reference} does not answer",
                node=host.name,
                observed=f"its Python was asked what it has, and did not end within {timeout:.0f} s",
                remedy=f"{by_hand(image.reference)} on {host.name} must end at once; a Python that is wrapped, or a "
                "sitecustomize.py that waits, does not",
            ) from error
        raise


def _run(reference: str, container: str, entrypoint: str) -> tuple[str, ...]:
    return (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--name", container),
        *("--label", f"{LABEL}=1", "-w", "/", "--entrypoint", entrypoint, reference),
    )


def _container() -> str:
    return f"sp-probe-{uuid.uuid4().hex[:12]}"


def _file(project: Project, fingerprint: str) -> Path:
    """Facts are an image's, not a deployment's: two deployments of one image ask it once. Another probe asks anew."""
    version = hashlib.sha256("".join(_program(module) for module in _ASKED_BY).encode()).hexdigest()[:8]
    return project.root / "data" / "state" / "images" / f"{fingerprint}-{version}.json"


def _program(module: object) -> str:
    return Path(getattr(module, "__file__", "")).read_text(encoding="utf-8")


def _has_no_program(done: Completed) -> bool:
    """Docker found no such entrypoint, or the shell that looked for a Python found none."""
    return done.status == 127 or "executable file not found" in done.stderr


def _is_shells(done: Completed) -> bool:
    return "no python3 in any of the usual places" in done.stderr


def _refused(host: Host, image: ImageFacts, answer: Completed) -> ImageError:
    said = (answer.stderr or answer.stdout).strip()[-800:]
    if _has_no_program(answer):
        remedy = "name an image with python3 on its PATH under image.candidates: vLLM needs one"
    elif "exec format error" in said:
        remedy = f"this is an {image.architecture} image: name one for the architecture of {host.name}"
    else:
        remedy = f"{by_hand(image.reference)} on {host.name} shows it again"
    return ImageError(
        f"{image.reference} could not be asked what engine it has",
        node=host.name,
        observed=f"status {answer.status}: {said or 'it printed nothing'}",
        remedy=remedy,
    )
