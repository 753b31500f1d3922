"""What the programs that run inside an image answered, read into records: pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_pipeline.errors import ImageError
from spark_pipeline.image import inspect_program, probe_program
from spark_pipeline.image.answer import ImageAnswer, Inspection, PythonFound
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.registry_source import read_registry, transformers_types, vllm_config_types
from spark_pipeline.image.root_cause import root_cause


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
    answers = _answers(text, probe_program.MARKER)
    if not answers:
        raise ImageError(
            f"{reference} did not say what engine it has",
            observed=text[-500:] or "it printed nothing",
            remedy=f"{by_hand(reference)} shows whether its Python works",
        )
    said = answers[-1]
    pythons = tuple(PythonFound(**one) for one in said["pythons"])
    if "installed_as" not in said:
        raise _no_vllm(reference, pythons)
    programs, packages = said["programs"], said["packages"]
    if programs["vllm"] is None:
        raise ImageError(
            f"{reference} has no program vllm",
            observed=f"the package is there ({pythons[0].executable} finds {pythons[0].vllm_directory}), but no `vllm` "
            "on the image's PATH",
            remedy="add the folder of its `vllm` to the image's PATH (ENV PATH=...:$PATH), or name another image under "
            "image.candidates",
        )
    engine = EngineFacts(
        vllm=said["version"] or "unknown",
        # A package without its program starts no cluster.
        ray=packages.get("ray") if said["has_ray_package"] and programs["ray"] else None,
        python=pythons[0].version,
        torch=packages.get("torch"),
        transformers=packages.get("transformers"),
        supports_nnodes=said["supports_nnodes"],
        architecture=architecture,
        cuda=said["cuda"],
        nccl=said["nccl"],
        flashinfer=packages.get("flashinfer-python") or packages.get("flashinfer"),
    )
    texts = said["texts"]
    return ImageAnswer(
        engine=engine,
        python=pythons[0].executable,
        directory=pythons[0].vllm_directory or "",
        installed_as=said["installed_as"],
        pythons=pythons,
        packages=dict(sorted(packages.items())),
        requirements=tuple(said["requirements"]),
        registry=read_registry(texts["registry"]),
        config_types=vllm_config_types(texts["vllm_config"]),
        transformers_types=transformers_types(texts["auto_mappings"], texts["configuration_auto"]),
    )


@dataclass(frozen=True)
class Inspections:
    """What vLLM said of each architecture that it was asked for.

    Args:
        by_architecture: one for each that was asked for.
        final: those whose answer would be the same another time: not one that came to no end.
    """

    by_architecture: dict[str, Inspection]
    final: dict[str, Inspection]


def read_inspections(text: str, architectures: Iterable[str]) -> Inspections:
    """The answers about these architectures out of all that the container printed."""
    registered: set[str] | None = None
    found: dict[str, Inspection] = {}
    problem, noise = "the container ended before vLLM answered", text[-2000:]
    for said in _answers(text, inspect_program.INSPECTION_MARKER):
        if "registered" in said and "architecture" not in said:
            registered = set(said["registered"])
        elif "import_failed" in said:
            found.update((name, _failed(name, None, said, said["import_failed"])) for name in architectures)
        elif "architecture" in said:
            name = said["architecture"]
            found[name] = (
                _failed(name, said["registered"], said, said["text"]) if "text" in said else Inspection(**said)
            )
        elif "problem" in said:
            problem, noise = said["problem"], said["noise"]
    unfinished = {
        name: Inspection(
            architecture=name,
            registered=None if registered is None else name in registered,
            inspected=None,
            traceback=noise,
            inconclusive=problem,
        )
        for name in architectures
        if name not in found
    }
    return Inspections({**found, **unfinished}, found)


def _failed(name: str, registered: bool | None, said: dict[str, Any], text: str) -> Inspection:
    cause = root_cause(text)
    inspected = said.get("inspected")
    return Inspection(
        architecture=name,
        registered=registered,
        inspected=None if cause.environment else inspected,
        error=cause.error,
        traceback=cause.traceback,
        inconclusive=cause.environment,
        seconds=said["seconds"],
    )


def _no_vllm(reference: str, pythons: tuple[PythonFound, ...]) -> ImageError:
    others = [one for one in pythons[1:] if one.vllm_directory]
    if others:
        folder = others[0].executable.rpartition("/")[0]
        remedy = f"{others[0].executable} has one: put it first on the image's PATH (ENV PATH={folder}:$PATH)"
    else:
        remedy = "name an image with vLLM under image.candidates; the python3 on its PATH must be the one with vLLM"
    return ImageError(
        f"{reference} has no vLLM",
        observed=f"its python3 ({pythons[0].executable} {pythons[0].version}) finds no package vllm"
        + (f"; looked at too: {', '.join(one.executable for one in pythons[1:])}" if pythons[1:] else ""),
        remedy=remedy,
    )


def _answers(text: str, marker: str) -> list[dict[str, Any]]:
    """What stands behind the marker. A line that something else got into is no answer."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith(marker):
            try:
                found.append(json.loads(line.removeprefix(marker)))
            except json.JSONDecodeError:
                continue
    return found
