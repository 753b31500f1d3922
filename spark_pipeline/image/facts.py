"""What engine an image has inside, asked of the image itself, once for each image."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path

from spark_pipeline.errors import ImageError, StateError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Completed, Host
from spark_pipeline.fleet.progress import Progress, heartbeat
from spark_pipeline.image import probe_program
from spark_pipeline.image.answer import ImageAnswer, ProbeResult, Registry
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project

# A cold 30 GB image on a slow disk: half a minute to its first Python line was seen, never more than one.
_PROBE_SECONDS = 300
LABEL = "spark_pipeline.probe"


def probe_command(reference: str, container: str) -> tuple[str, ...]:
    """`docker run` of the probe: the image's own entrypoint replaced, no GPU, no network, gone when it ends.

    `-w /`: some images declare a work directory that is missing or not theirs. The entrypoint of a serving image may
    start serving whatever it is given (shared/scenario.md), so it never runs.
    """
    return (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--name", container),
        *("--label", f"{LABEL}=1", "-w", "/", "--entrypoint", "python3", reference, "-c", _program()),
    )


def parse(text: str, *, reference: str, architecture: str) -> EngineFacts:
    """The probe's answer out of all that the container printed.

    Raises:
        ImageError: no answer in it, no vLLM in the image, or no program `vllm`.
    """
    answers = [line for line in text.splitlines() if line.startswith(probe_program.MARKER)]
    if not answers:
        raise ImageError(
            f"{reference} did not say what engine it has",
            observed=text[-500:] or "it printed nothing",
            remedy=f"{_by_hand(reference)} shows whether its Python works",
        )
    answer = json.loads(answers[-1].removeprefix(probe_program.MARKER))
    if not answer.pop("vllm_found"):
        raise ImageError(
            f"{reference} has no vLLM",
            observed=f"its python3 ({answer['python']}) finds no package vllm",
            remedy="name an image with vLLM under image.candidates; the python3 on its PATH must be the one with vLLM",
        )
    programs = answer.pop("programs")
    if programs["vllm"] is None:
        raise ImageError(
            f"{reference} has no program vllm",
            observed=f"the package is there (python3 is {programs['python3']}), but no `vllm` on the image's PATH",
            remedy="add the folder of its `vllm` to the image's PATH (ENV PATH=...:$PATH), or name another image under "
            "image.candidates",
        )
    if programs["ray"] is None:
        answer["ray"] = None  # a package without its program starts no cluster
    answer["vllm"] = answer["vllm"] or "unknown"
    return EngineFacts(**answer, architecture=architecture)


def cached(project: Project, fingerprint: str) -> ProbeResult | None:
    """What is known of this image from before. An answer of another version of the probe counts as none."""
    try:
        return store.read(_file(project, fingerprint), ProbeResult)
    except StateError:
        return None


def probe(
    host: Host, image: ImageFacts, project: Project, progress: Progress, wanted: Wanted | None = None
) -> ProbeResult:
    """Ask an image that `host` holds; one that was asked before is not run again.

    Raises:
        ImageError: no python3, or no vLLM in the image.
        MachineError: the node could not be asked.
    """
    known = cached(project, image.fingerprint)
    if known is not None:
        return known
    container = f"sp-probe-{uuid.uuid4().hex[:12]}"
    try:
        with heartbeat(f"asking {image.reference} on {host.name} what engine it has", progress):
            answer = host.run(probe_command(image.image_id, container), timeout=_PROBE_SECONDS, check=False)
    except BaseException:
        # Ending `docker run` does not end its container.
        Docker(host).remove([container])
        raise
    if answer.status != 0:
        raise _refused(host, image, answer)
    engine = parse(answer.stdout, reference=image.reference, architecture=image.architecture)
    facts = ProbeResult(answer=_only(engine))
    store.write(_file(project, image.fingerprint), facts)
    return facts


def _only(engine: EngineFacts) -> ImageAnswer:
    return ImageAnswer(
        engine=engine,
        python="python3",
        directory="",
        installed_as="distribution",
        pythons=(),
        packages={},
        requirements=(),
        registry=Registry(),
        config_types=(),
        transformers_types=(),
    )


def _file(project: Project, fingerprint: str) -> Path:
    """Facts are an image's, not a deployment's: two deployments of one image ask it once. Another probe asks anew."""
    version = hashlib.sha256(_program().encode()).hexdigest()[:8]
    return project.root / "data" / "state" / "images" / f"{fingerprint}-{version}.json"


def _program() -> str:
    return Path(probe_program.__file__).read_text(encoding="utf-8")


def _refused(host: Host, image: ImageFacts, answer: Completed) -> ImageError:
    said = (answer.stderr or answer.stdout).strip()[-800:]
    if answer.status == 127 or "executable file not found" in said:
        remedy = "name an image with python3 on its PATH under image.candidates: vLLM needs one"
    elif "exec format error" in said:
        remedy = f"this is an {image.architecture} image: name one for the architecture of {host.name}"
    else:
        remedy = f"{_by_hand(image.reference)} on {host.name} shows it again"
    return ImageError(
        f"{image.reference} could not be asked what engine it has",
        node=host.name,
        observed=f"status {answer.status}: {said or 'it printed nothing'}",
        remedy=remedy,
    )


def _by_hand(reference: str) -> str:
    return f"docker run --rm -w / --entrypoint python3 {reference} -c 'print(1)'"
