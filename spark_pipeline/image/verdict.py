"""Whether an image can serve a model, and how that is known: pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_pipeline.image.answer import ImageAnswer, Inspection, Part


class Kind(StrEnum):
    """What an image is to an architecture."""

    NATIVE = "native"
    TRANSFORMERS_FALLBACK = "transformers fallback"
    BROKEN = "registered but broken"
    PREVIOUSLY_SUPPORTED = "previously supported"
    OUT_OF_TREE = "out of tree"
    UNSUPPORTED = "unsupported"


class Evidence(StrEnum):
    """How it is known, weakest first."""

    STATIC = "static"
    IMPORT = "import"
    INSPECTED = "inspected"


@dataclass(frozen=True)
class Wanted:
    """What a model asks of an image.

    Args:
        architectures: as config.json names them, best first.
        model_type: '' where config.json names none.
        transformers_version: that the checkpoint was written with; '' where it does not say.
        has_remote_code: config.json's auto_map names classes of the repository's own.
    """

    architectures: tuple[str, ...]
    model_type: str = ""
    transformers_version: str = ""
    has_remote_code: bool = False


class Verdict(Part):
    """The answer for one image and one model.

    Args:
        architecture: the one that the verdict is about: the first that the image knows, else the model's first.
        why: one sentence with the evidence in it.
        error: the real exception where `kind` is broken; '' else.
        first_version: the first vLLM release known to have the architecture; None where none is known.
        last_version: the last one that had it, where `kind` is previously supported.
        knows_model_type: transformers, or vLLM itself, has a configuration class for the model type.
    """

    kind: Kind
    evidence: Evidence
    architecture: str
    why: str
    error: str = ""
    first_version: str | None = None
    last_version: str | None = None
    knows_model_type: bool = True

    @property
    def serves(self) -> bool:
        """The image can serve the model as it is."""
        return self.kind in (Kind.NATIVE, Kind.TRANSFORMERS_FALLBACK)


def judge(answer: ImageAnswer, inspection: Inspection | None, wanted: Wanted) -> Verdict:
    """The best available evidence decides: inspected, else imported, else static."""
    raise NotImplementedError
