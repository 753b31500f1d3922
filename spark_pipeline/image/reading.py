"""What the programs that run inside an image answered, read into records: pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_pipeline.errors import ImageError
from spark_pipeline.image.answer import ImageAnswer, Inspection, PythonFound
from spark_pipeline.image.events import (
    Ended,
    Engine,
    Failure,
    ImportFailed,
    Inspected,
    InspectionFailed,
    NoEngine,
    NotRegistered,
    Registered,
    TransformersFailed,
    events,
)
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.registry_source import read_registry, transformers_types, vllm_config_types
from spark_pipeline.image.root_cause import killed, root_cause


def by_hand(reference: str) -> str:
    """What a person types to see whether an image's Python works."""
    return f"docker run --rm -w / --entrypoint python3 {reference} -c 'print(1)'"


def read_answer(text: str, *, reference: str, architecture: str) -> ImageAnswer:
    """The facts out of all that the container printed.

    Args:
        architecture: of the image, as Docker names it.

    Raises:
        ImageError: no answer in it, no vLLM in the image, or no program `vllm`.
    """
    said = next((event for event in reversed([*events(text)]) if isinstance(event, Engine | NoEngine)), None)
    if said is None:
        raise ImageError(
            f"{reference} did not say what engine it has",
            observed=text[-500:] or "it printed nothing",
            remedy=f"{by_hand(reference)} shows whether its Python works",
        )
    if isinstance(said, NoEngine):
        raise _no_vllm(reference, said.pythons)
    pythons, packages = said.pythons, said.packages
    if said.programs["vllm"] is None:
        raise ImageError(
            f"{reference} has no program vllm",
            observed=f"the package is there ({pythons[0].executable} finds {pythons[0].vllm_directory}), but no `vllm` "
            "on the image's PATH",
            remedy="add the folder of its `vllm` to the image's PATH (ENV PATH=...:$PATH), or name another image under "
            "image.candidates",
        )
    engine = EngineFacts(
        vllm=said.version or "unknown",
        # A package without its program starts no cluster.
        ray=packages.get("ray") if said.has_ray_package and said.programs["ray"] else None,
        python=pythons[0].version,
        torch=packages.get("torch"),
        transformers=packages.get("transformers"),
        supports_nnodes=said.supports_nnodes,
        architecture=architecture,
        cuda=said.cuda,
        nccl=said.nccl,
        flashinfer=packages.get("flashinfer-python") or packages.get("flashinfer"),
    )
    return ImageAnswer(
        engine=engine,
        python=pythons[0].executable,
        directory=pythons[0].vllm_directory or "",
        installed_as=said.installed_as,
        pythons=pythons,
        packages=dict(sorted(packages.items())),
        requirements=said.requirements,
        registry=read_registry(said.texts["registry"]),
        config_types=vllm_config_types(said.texts["vllm_config"]),
        transformers_types=transformers_types(said.texts["auto_mappings"], said.texts["configuration_auto"]),
    )


def read_inspections(text: str, architectures: Sequence[str], *, for_gpus: bool) -> dict[str, Inspection]:
    """What vLLM said of each of these architectures, out of all that the container printed.

    Args:
        for_gpus: the image is made for GPUs; the container has none.
    """
    registered: tuple[str, ...] | None = None
    found: dict[str, Inspection] = {}
    ended, log = "the container was ended before vLLM answered", text[-2000:]
    for event in events(text):
        match event:
            case Registered():
                registered = event.architectures
            case ImportFailed(failure=failure, seconds=seconds):
                found.update((name, _failed(name, None, failure, seconds, for_gpus)) for name in architectures)
            case Inspected(architecture=name, seconds=seconds):
                found[name] = Inspection(architecture=name, registered=True, inspected=True, seconds=seconds)
            case InspectionFailed(architecture=name, failure=failure, seconds=seconds):
                found[name] = _failed(name, True, failure, seconds, for_gpus)
            case TransformersFailed(architecture=name, failure=failure, seconds=seconds):
                found[name] = _failed(name, False, failure, seconds, for_gpus)
            case NotRegistered(architecture=name):
                found[name] = Inspection(
                    architecture=name,
                    registered=False,
                    inspected=None,
                    transformers_class=event.transformers_class,
                    backend_compatible=event.backend_compatible,
                    seconds=event.seconds,
                )
            case Ended():
                ended, log = _ended(event), event.log
            case _:
                pass
    for name in architectures:
        if name not in found:
            found[name] = Inspection(
                architecture=name,
                registered=None if registered is None else name in registered,
                inspected=None,
                traceback=log,
                inconclusive=ended,
                final=False,
            )
    return found


def _failed(name: str, registered: bool | None, failure: Failure, seconds: float, for_gpus: bool) -> Inspection:
    cause = root_cause(failure.text, failure.status, for_gpus=for_gpus)
    return Inspection(
        architecture=name,
        registered=registered,
        inspected=False if registered and not cause.inconclusive else None,
        error=cause.error,
        traceback=cause.traceback,
        inconclusive=cause.inconclusive,
        final=cause.says.final,
        seconds=seconds,
    )


def _ended(event: Ended) -> str:
    if event.status is None:
        return f"{event.step} did not end within {event.limit_seconds:.0f} s"
    how = killed(event.status) or f"it ended the process with status {event.status}"
    return f"{event.step}: {how}"


def _no_vllm(reference: str, pythons: tuple[PythonFound, ...]) -> ImageError:
    other = next((one for one in pythons[1:] if one.vllm_directory), None)
    if other is None:
        remedy = "name an image with vLLM under image.candidates; the python3 on its PATH must be the one with vLLM"
    else:
        folder, _, name = other.executable.rpartition("/")
        remedy = f"{other.executable} has one: put it first on the image's PATH (ENV PATH={folder}:$PATH)"
        if name not in ("python3", "python"):
            remedy = f"{other.executable} has one: make it the python3 that comes first on the image's PATH"
    return ImageError(
        f"{reference} has no vLLM",
        observed=f"its python3 ({pythons[0].executable} {pythons[0].version}) finds no package vllm"
        + (f"; looked at too: {', '.join(one.executable for one in pythons[1:])}" if pythons[1:] else ""),
        remedy=remedy,
    )
