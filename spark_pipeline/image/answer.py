"""What an image says of itself: asked once for each image, kept under data/state/images."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from spark_pipeline.image.record import EngineFacts
from spark_pipeline.spec.base import Record

# Raise it when an image could answer differently: another question, another way to read an answer, another fact kept.
# What an earlier version asked is then asked anew. 1 was never released.
PROBE_VERSION = 2
InstalledAs = Literal["distribution", "editable", "source_tree"]


class Part(BaseModel):
    """A part of a record. Unknown keys are refused, as in the record itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Registry(Part):
    """vLLM's tables of architectures, read from the text of its registry.py.

    Args:
        architectures: architecture -> 'module:Class'. A module without a dot lies in vllm.model_executor.models.
        previously_supported: architecture -> the last vLLM version that had it.
        out_of_tree: architecture -> where its plug-in is.
        problem: why the text could not be read; '' when it was.
    """

    architectures: dict[str, str] = {}
    previously_supported: dict[str, str] = {}
    out_of_tree: dict[str, str] = {}
    problem: str = ""


class PythonFound(Part):
    """One Python of the image, and the vLLM that it would import (None: it finds none)."""

    executable: str
    version: str
    vllm_directory: str | None


class ImageAnswer(Record):
    """Everything that is known without importing vLLM.

    Args:
        python: the executable that has the vLLM which serves; the same that the `vllm` on PATH runs under.
        directory: of the package vllm.
        installed_as: 'distribution' (site-packages), 'editable' (a distribution that points elsewhere) or
            'source_tree' (on the path, no distribution).
        pythons: every Python that was found, the serving one first.
        packages: distribution -> version, names normalised (PEP 503), of the serving Python.
        requirements: what vLLM itself requires, as it declares it ("transformers<5,>=4.56.0").
        config_types: model types for which vLLM brings a configuration class of its own.
        transformers_types: model types that the image's transformers knows.
    """

    engine: EngineFacts
    python: str
    directory: str
    installed_as: InstalledAs
    pythons: tuple[PythonFound, ...]
    packages: dict[str, str]
    requirements: tuple[str, ...]
    registry: Registry
    config_types: tuple[str, ...]
    transformers_types: tuple[str, ...]


class Inspection(Record):
    """What the image's vLLM answered about one architecture when it was imported, with an empty VLLM_CACHE_ROOT.

    Args:
        registered: `ModelRegistry.get_supported_archs()` has it; None: vLLM could not be imported.
        inspected: vLLM could look at the class; None: it was not tried, or the answer says nothing (`inconclusive`).
        error: the real exception in one line, such as "ImportError: cannot import name 'MambaStateCopyFunc' from ...".
        traceback: its last lines, for the report.
        transformers_class: transformers has a class of this name; None: could not be asked.
        backend_compatible: and that class can run under vLLM's Transformers backend.
        inconclusive: why import or inspection say nothing about the architecture (no GPU driver, time-out); '' else.
        final: another time the answer would be the same; only then is it kept. See root_cause.Says.
        seconds: how long it took.
    """

    architecture: str
    registered: bool | None
    inspected: bool | None
    error: str = ""
    traceback: str = ""
    transformers_class: bool | None = None
    backend_compatible: bool | None = None
    inconclusive: str = ""
    final: bool = True
    seconds: float = 0.0


class ProbeResult(Record):
    """One image, and what it answered about the architectures that it was asked for (none: only about itself)."""

    answer: ImageAnswer
    inspections: dict[str, Inspection] = Field(default_factory=dict)
