"""Whether an image can serve a model, and how that is known: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from spark_pipeline.errors import ImageError
from spark_pipeline.image.answer import ImageAnswer, Inspection, Part
from spark_pipeline.image.first_versions import first_version, last_version, newest_release


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


def judge(answer: ImageAnswer, inspections: Inspection | Mapping[str, Inspection] | None, wanted: Wanted) -> Verdict:
    """The best available evidence decides: inspected, else imported, else static.

    Of several architectures the first that the image can serve counts, as vLLM takes them in their order; else the
    first that says more than "unsupported".

    Args:
        inspections: what vLLM said, of one architecture or of several; None or empty: it was not asked.

    Raises:
        ImageError: the model names no architecture.
    """
    if not wanted.architectures:
        raise ImageError(
            "no image can be judged for a model without an architecture",
            observed="its config.json names none under `architectures`: vLLM would serve it as an embedding model, and "
            "answer every chat with 404",
            remedy='add "architectures": ["..."] to config.json in the repository, or name another model; the class '
            "that the weights were saved from is the right one",
        )
    if isinstance(inspections, Inspection):
        inspections = {inspections.architecture: inspections}
    asked = inspections or {}
    known_type = _knows_type(answer, wanted.model_type)
    verdicts = [_judge_one(answer, asked.get(name), name).verdict(known_type) for name in wanted.architectures]
    serving = [verdict for verdict in verdicts if verdict.serves]
    telling = [verdict for verdict in verdicts if verdict.kind is not Kind.UNSUPPORTED]
    return (serving or telling or verdicts)[0]


@dataclass(frozen=True)
class _Finding:
    """A verdict in the making, about one architecture."""

    kind: Kind
    evidence: Evidence
    architecture: str
    why: str
    error: str = ""
    last_version: str | None = None

    def verdict(self, knows_model_type: bool) -> Verdict:
        return Verdict(
            kind=self.kind,
            evidence=self.evidence,
            architecture=self.architecture,
            why=self.why,
            error=self.error,
            first_version=first_version(self.architecture),
            last_version=self.last_version,
            knows_model_type=knows_model_type,
        )


def _judge_one(answer: ImageAnswer, inspection: Inspection | None, name: str) -> _Finding:
    entry = answer.registry.architectures.get(name)
    vllm = f"vLLM {answer.engine.vllm}"
    if inspection is None or inspection.registered is None:
        return _not_imported(answer, inspection, name)
    if not inspection.registered:
        return _not_registered(answer, inspection, name, Evidence.IMPORT)
    kind = Kind.TRANSFORMERS_FALLBACK if _is_transformers(entry) else Kind.NATIVE
    if inspection.inspected:
        return _Finding(kind, Evidence.INSPECTED, name, f"{vllm} has {name} and could inspect it ({_place(entry)})")
    if inspection.inspected is False:
        why = f"{vllm} has {name} in its registry, and could not inspect it: {inspection.error}"
        return _Finding(Kind.BROKEN, Evidence.INSPECTED, name, why, inspection.error)
    why = f"{vllm} lists {name} when imported; its inspection says nothing here: {inspection.inconclusive}"
    return _Finding(kind, Evidence.IMPORT, name, why)


def _not_imported(answer: ImageAnswer, inspection: Inspection | None, name: str) -> _Finding:
    """vLLM was not imported, or could not be: its registry's text decides."""
    registry = answer.registry
    entry = registry.architectures.get(name)
    vllm = f"vLLM {answer.engine.vllm}"
    failed = inspection is not None and bool(inspection.error) and not inspection.inconclusive
    if failed and (entry or registry.problem):
        assert inspection is not None
        why = f"{vllm} cannot be imported: {inspection.error}"
        return _Finding(Kind.BROKEN, Evidence.IMPORT, name, why, inspection.error)
    if registry.problem:
        return _Finding(Kind.BROKEN, Evidence.STATIC, name, f"{vllm}: {registry.problem}", registry.problem)
    if entry is None:
        return _not_registered(answer, inspection, name, Evidence.STATIC)
    kind = Kind.TRANSFORMERS_FALLBACK if _is_transformers(entry) else Kind.NATIVE
    silent = f"; importing it says nothing here: {inspection.inconclusive}" if inspection else ""
    return _Finding(kind, Evidence.STATIC, name, f"{name} is in the registry of {vllm} ({_place(entry)}){silent}")


def _not_registered(answer: ImageAnswer, inspection: Inspection | None, name: str, evidence: Evidence) -> _Finding:
    registry, engine = answer.registry, answer.engine
    missing = f"{name} is not among the {len(registry.architectures)} architectures of vLLM {engine.vllm}"
    if inspection is not None and inspection.transformers_class and inspection.backend_compatible:
        why = (
            f"{missing}, and transformers {engine.transformers} has a class that runs under vLLM's Transformers backend"
        )
        return _Finding(Kind.TRANSFORMERS_FALLBACK, evidence, name, why)
    if (until := registry.previously_supported.get(name)) is not None:
        why = f"vLLM had {name} until {until}; {engine.vllm} says so itself"
        return _Finding(Kind.PREVIOUSLY_SUPPORTED, evidence, name, why, last_version=until)
    if (address := registry.out_of_tree.get(name)) is not None:
        why = f"vLLM {engine.vllm} serves {name} with a plug-in that the image does not have: {address}"
        return _Finding(Kind.OUT_OF_TREE, evidence, name, why)
    return _Finding(Kind.UNSUPPORTED, evidence, name, f"{missing}{_no_fallback(answer, inspection)}; {_since(name)}")


def _no_fallback(answer: ImageAnswer, inspection: Inspection | None) -> str:
    transformers = f"transformers {answer.engine.transformers}"
    if inspection is None or inspection.registered is None:
        return ""  # nothing could be asked
    if inspection.transformers_class is None:
        if not inspection.error:
            return ""
        return f", and {transformers} does not say whether it has it: {inspection.error}"
    if not inspection.transformers_class:
        return f", nor does {transformers} have it"
    return f", and the class of {transformers} cannot run under vLLM's Transformers backend"


def _since(name: str) -> str:
    first, last = first_version(name), last_version(name)
    if first is None:
        return f"no release up to {newest_release()} has it"
    return f"first in {first}, last in {last}" if last else f"first in {first}"


def _knows_type(answer: ImageAnswer, model_type: str) -> bool:
    """Tables that could not be read say nothing against a model type."""
    tables = {*answer.config_types, *answer.transformers_types}
    return not model_type or not answer.transformers_types or model_type in tables


def _is_transformers(entry: str | None) -> bool:
    """Registered, but served by transformers' own class."""
    return entry is not None and entry.partition(":")[0].split(".")[0] == "transformers"


def _place(entry: str | None) -> str:
    return entry or "registered by a plug-in"
