"""Whether an image can serve a model: the best evidence decides, and is named."""

from __future__ import annotations

from typing import Any

import pytest

from spark_pipeline.errors import ImageError
from spark_pipeline.image.answer import ImageAnswer, Inspection, Registry
from spark_pipeline.image.first_versions import first_version, last_version
from spark_pipeline.image.verdict import Evidence, Kind, Wanted, judge
from spark_pipeline_tests.unit.image.samples import PROBED

REGISTRY = Registry(
    architectures={
        "Qwen3ForCausalLM": "qwen3:Qwen3ForCausalLM",
        "SmolLM3ForCausalLM": "transformers:TransformersForCausalLM",
    },
    previously_supported={"QWenLMHeadModel": "0.23.0"},
    out_of_tree={"BartModel": "https://example.org/bart-plugin"},
)
QWEN3, QWEN35 = "Qwen3ForCausalLM", "Qwen3_5MoeForConditionalGeneration"
GRAFTED = "ImportError: cannot import name 'MambaStateCopyFunc' from 'vllm.mamba'"
NO_GPU = "the container that asks has no GPU: RuntimeError: No CUDA GPUs are available"


def answer(**changes: Any) -> ImageAnswer:
    return PROBED.answer.model_copy(update={"registry": REGISTRY, **changes})


def said(architecture: str, registered: bool | None, inspected: bool | None, **more: Any) -> Inspection:
    return Inspection(architecture=architecture, registered=registered, inspected=inspected, **more)


def wanted(*architectures: str, **more: Any) -> Wanted:
    return Wanted(architectures, **more)


@pytest.mark.parametrize(
    ("architecture", "inspection", "kind", "evidence", "why"),
    [
        # Inspected: nothing is better.
        (QWEN3, (True, True, {}), "native", "inspected", "could inspect it (qwen3:Qwen3ForCausalLM)"),
        (QWEN3, (True, False, {"error": GRAFTED}), "registered but broken", "inspected", GRAFTED),
        (QWEN35, (True, True, {}), "native", "inspected", "registered by a plug-in"),
        ("SmolLM3ForCausalLM", (True, True, {}), "transformers fallback", "inspected", "TransformersForCausalLM"),
        # Imported.
        (QWEN3, (True, None, {"inconclusive": NO_GPU, "error": "x"}), "native", "import", NO_GPU),
        (QWEN3, (None, None, {"error": GRAFTED}), "registered but broken", "import", f"cannot be imported: {GRAFTED}"),
        (QWEN3, (False, None, {"transformers_class": False}), "unsupported", "import", "nor does transformers 5.17.0"),
        (
            *(QWEN35, (False, None, {"transformers_class": True, "backend_compatible": True})),
            *("transformers fallback", "import", "runs under vLLM's Transformers backend"),
        ),
        (
            *(QWEN35, (False, None, {"transformers_class": True, "backend_compatible": False})),
            *("unsupported", "import", "cannot run under vLLM's Transformers backend; first in 0.17.0"),
        ),
        (
            QWEN35,
            (False, None, {"error": "OSError: x"}),
            "unsupported",
            "import",
            "does not say whether it has it: OSError",
        ),
        ("QWenLMHeadModel", (False, None, {}), "previously supported", "import", "until 0.23.0"),
        ("BartModel", (False, None, {}), "out of tree", "import", "https://example.org/bart-plugin"),
        # Only its text, or an import that says nothing.
        (QWEN3, None, "native", "static", "is in the registry of vLLM 0.32.0"),
        (QWEN3, (None, None, {"inconclusive": NO_GPU}), "native", "static", f"says nothing here: {NO_GPU}"),
        ("SmolLM3ForCausalLM", None, "transformers fallback", "static", "in the registry"),
        ("QWenLMHeadModel", None, "previously supported", "static", "until 0.23.0"),
        ("BartModel", None, "out of tree", "static", "https://example.org/bart-plugin"),
        (QWEN35, None, "unsupported", "static", "not among the 2 architectures of vLLM 0.32.0; first in 0.17.0"),
        (QWEN35, (None, None, {"error": GRAFTED}), "unsupported", "static", "first in 0.17.0"),
        ("Qwen3", None, "unsupported", "static", "no release up to "),
    ],
)
def test_the_best_evidence_decides(
    architecture: str,
    inspection: tuple[bool | None, bool | None, dict[str, Any]] | None,
    kind: str,
    evidence: str,
    why: str,
) -> None:
    asked = said(architecture, *inspection[:2], **inspection[2]) if inspection else None
    verdict = judge(answer(), asked, wanted(architecture))
    assert (verdict.kind, verdict.evidence, verdict.architecture) == (Kind(kind), Evidence(evidence), architecture)
    assert why in verdict.why
    assert verdict.error == (GRAFTED if verdict.kind is Kind.BROKEN else "")


@pytest.mark.parametrize(
    ("inspection", "evidence", "error"),
    [
        (None, "static", "registry.py does not parse: x"),
        (said(QWEN3, None, None, error="SyntaxError: x"), "import", "SyntaxError: x"),
        (said(QWEN3, None, None, inconclusive=NO_GPU), "static", "registry.py does not parse: x"),
    ],
)
def test_a_registry_that_cannot_be_read_is_broken(inspection: Inspection | None, evidence: str, error: str) -> None:
    broken = answer(registry=Registry(problem="registry.py does not parse: x"))
    verdict = judge(broken, inspection, wanted(QWEN3))
    assert (verdict.kind, verdict.evidence, verdict.error) == (Kind.BROKEN, evidence, error)


def test_a_registry_that_only_python_can_read_does_not_speak_against_an_inspection() -> None:
    verdict = judge(answer(registry=Registry(problem="no table")), said(QWEN3, True, True), wanted(QWEN3))
    assert (verdict.kind, verdict.evidence) == (Kind.NATIVE, Evidence.INSPECTED)


def test_the_version_that_is_needed_is_named() -> None:
    verdict = judge(answer(), None, wanted(QWEN35))
    assert (verdict.first_version, verdict.last_version) == ("0.17.0", None)
    went = judge(answer(), None, wanted("QWenLMHeadModel"))
    assert (went.kind, went.last_version) == (Kind.PREVIOUSLY_SUPPORTED, "0.23.0")


def test_only_native_and_fallback_serve() -> None:
    serving = {kind for kind in Kind if judge(answer(), None, wanted(QWEN3)).model_copy(update={"kind": kind}).serves}
    assert serving == {Kind.NATIVE, Kind.TRANSFORMERS_FALLBACK}


# --- several architectures, and none


def test_of_several_architectures_the_first_that_can_be_served_counts() -> None:
    verdict = judge(answer(), None, wanted(QWEN35, QWEN3))
    assert (verdict.kind, verdict.architecture) == (Kind.NATIVE, QWEN3)


def test_of_several_that_cannot_be_served_the_one_that_says_more_counts() -> None:
    broken = {QWEN3: said(QWEN3, True, False, error=GRAFTED)}
    verdict = judge(answer(), broken, wanted(QWEN35, QWEN3))
    assert (verdict.kind, verdict.architecture, verdict.error) == (Kind.BROKEN, QWEN3, GRAFTED)
    assert judge(answer(), None, wanted(QWEN35, "Qwen3")).architecture == QWEN35


def test_what_was_said_of_another_architecture_does_not_count() -> None:
    verdict = judge(answer(), said("Qwen3MoeForCausalLM", True, False, error=GRAFTED), wanted(QWEN3))
    assert (verdict.kind, verdict.evidence) == (Kind.NATIVE, Evidence.STATIC)


def test_a_model_without_an_architecture_is_an_error_in_words() -> None:
    with pytest.raises(ImageError) as caught:
        judge(answer(), None, wanted())
    assert "embedding model" in caught.value.observed
    assert '"architectures"' in caught.value.remedy


# --- the model type


@pytest.mark.parametrize(
    ("model_type", "changes", "known"),
    [
        ("qwen3", {}, True),
        ("qwen3_5_moe", {}, False),
        ("qwen3_5_moe", {"config_types": ("qwen3_5_moe",)}, True),  # vLLM brings it itself
        ("qwen3_5_moe", {"transformers_types": ()}, True),  # tables that could not be read speak against nothing
        ("", {}, True),
    ],
)
def test_a_model_type_is_known_to_transformers_or_to_vllm(
    model_type: str, changes: dict[str, Any], known: bool
) -> None:
    assert judge(answer(**changes), None, wanted(QWEN3, model_type=model_type)).knows_model_type is known


# --- the table of releases


@pytest.mark.parametrize(
    ("architecture", "first", "last"),
    [
        (QWEN35, "0.17.0", None),
        ("Qwen3MoeForCausalLM", "0.8.4", None),
        ("Qwen3NextForCausalLM", "0.10.2", None),
        ("LlamaForCausalLM", "0.8.0", None),
        ("BartModel", "0.8.0", "0.10.2"),
        ("FooForCausalLM", None, None),
    ],
)
def test_first_and_last_release_of_an_architecture(architecture: str, first: str | None, last: str | None) -> None:
    assert (first_version(architecture), last_version(architecture)) == (first, last)
