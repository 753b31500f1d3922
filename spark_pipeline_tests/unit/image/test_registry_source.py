"""vLLM's registry read from its text: real ones of six releases, and shapes that a fork may have."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path

import pytest

from spark_pipeline.image.answer import Registry
from spark_pipeline.image.registry_source import read_registry, transformers_types, vllm_config_types

RECORDED = Path(__file__).parents[2] / "recorded" / "registries" / "sources.tar.xz"


@cache
def recorded() -> dict[str, str]:
    with tarfile.open(RECORDED) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@cache
def registry(version: str) -> Registry:
    return read_registry(recorded()[f"vllm/{version}/registry.py"])


# As `ModelRegistry.get_supported_archs()` counts them; the two other tables by hand.
@pytest.mark.parametrize(
    ("version", "architectures", "previously", "out_of_tree"),
    [
        ("0.8.5", 146, 0, 0),
        ("0.11.0", 213, 7, 0),
        ("0.14.1", 262, 10, 0),
        ("0.17.0", 305, 10, 0),
        ("0.23.0", 365, 7, 4),
        ("0.33.0", 415, 50, 5),
    ],
)
def test_every_entry_of_a_real_registry_is_read(
    version: str, architectures: int, previously: int, out_of_tree: int
) -> None:
    found = registry(version)
    counts = (len(found.architectures), len(found.previously_supported), len(found.out_of_tree), found.problem)
    assert counts == (architectures, previously, out_of_tree, "")


@pytest.mark.parametrize(
    ("version", "architecture", "entry"),
    [
        ("0.8.5", "Qwen3MoeForCausalLM", "qwen3_moe:Qwen3MoeForCausalLM"),
        ("0.14.1", "Qwen3MoeForCausalLM", "qwen3_moe:Qwen3MoeForCausalLM"),
        ("0.14.1", "Qwen3_5MoeForConditionalGeneration", None),
        # Over several lines, and the heads for speculative decoding.
        ("0.17.0", "Qwen3_5MoeForConditionalGeneration", "qwen3_5:Qwen3_5MoeForConditionalGeneration"),
        ("0.17.0", "Qwen3_5MoeMTP", "qwen3_5_mtp:Qwen3_5MoeMTP"),
        # By a comprehension over another table.
        ("0.17.0", "LlamaModel", "llama:LlamaForCausalLM"),
        # In a package of its own, named in full.
        ("0.33.0", "DeepseekV4ForCausalLM", "vllm.models.deepseek_v4:DeepseekV4ForCausalLM"),
        ("0.33.0", "TransformersMoEForCausalLM", "transformers:TransformersMoEForCausalLM"),
    ],
)
def test_entries_name_module_and_class(version: str, architecture: str, entry: str | None) -> None:
    assert registry(version).architectures.get(architecture) == entry


def test_the_same_beginning_is_another_architecture() -> None:
    names = {name for name in registry("0.14.1").architectures if name.startswith("Qwen3")}
    assert "Qwen3MoeForCausalLM" in names
    assert not any(name.startswith("Qwen3_5") for name in names)


def test_what_went_and_what_lives_elsewhere_is_told() -> None:
    found = registry("0.33.0")
    assert found.previously_supported["QWenLMHeadModel"] == "0.23.0"
    assert found.out_of_tree["BartModel"] == "https://github.com/vllm-project/bart-plugin"


ENTRY = '("qwen3", "Qwen3ForCausalLM")'


@pytest.mark.parametrize(
    "text",
    [
        f'_VLLM_MODELS = {{"Qwen3ForCausalLM": {ENTRY}}}',
        f"_VLLM_MODELS: dict[str, tuple[str, str]] = dict(Qwen3ForCausalLM={ENTRY})",
        f'A = {{"Qwen3ForCausalLM": {ENTRY}}}\n_VLLM_MODELS = {{**A, **UNKNOWN}}',
        f'A = {{"Qwen3ForCausalLM": {ENTRY}}}\n_VLLM_MODELS = A | load_more()',
        f'_VLLM_MODELS = {{}}\n_VLLM_MODELS |= {{"Qwen3ForCausalLM": {ENTRY}}}',
        f'_VLLM_MODELS = {{}}\n_VLLM_MODELS.update({{"Qwen3ForCausalLM": {ENTRY}}})',
        f'_VLLM_MODELS = {{}}\n_VLLM_MODELS["Qwen3ForCausalLM"] = {ENTRY}',
        'NAMES = ["Qwen3ForCausalLM"]\n_VLLM_MODELS = {name: ("qwen3", name) for name in NAMES if name != "X"}',
        'M = "qwen3"\n_VLLM_MODELS = {"Qwen3ForCausalLM": (M, f"{\'Qwen3\'}ForCausalLM")}',
        '_VLLM_MODELS = {"Qwen3ForCausalLM": ("qwen" + "3", "Qwen3ForCausalLM"), "Odd": f(), f(): 1}',
        f'try:\n    A = {{"Qwen3ForCausalLM": {ENTRY}}}\nexcept ImportError:\n    pass\n_VLLM_MODELS = {{**A}}',
        'N = [("Qwen3ForCausalLM", "qwen3")]\n_VLLM_MODELS = {}\nfor a, m in N:\n    _VLLM_MODELS[a] = (m, a)',
        f'T = {{}}\nfor a, b in find():\n    T[a] = (b, a)\nelse:\n    T["Qwen3ForCausalLM"] = {ENTRY}\n'
        "_VLLM_MODELS = T",
        f'T = {{}}\nwhile more():\n    T["Qwen3ForCausalLM"] = {ENTRY}\n    break\n_VLLM_MODELS = T',
        f'with guard():\n    _VLLM_MODELS = {{"Qwen3ForCausalLM": {ENTRY}}}',
        f'_TEXT_MODELS = {{"Qwen3ForCausalLM": {ENTRY}}}\n_PREVIOUSLY_SUPPORTED_MODELS = {{"Old": "0.9.2"}}',
    ],
)
def test_other_ways_to_write_the_same_table(text: str) -> None:
    found = read_registry(text)
    assert (found.architectures, found.problem) == ({"Qwen3ForCausalLM": "qwen3:Qwen3ForCausalLM"}, "")


@pytest.mark.parametrize(
    "text",
    [
        "T = {'A': E}\nif cuda():\n    T['B'] = E\nelse:\n    T['C'] = E",
        "if cuda():\n    T = {'A': E}\nelif rocm():\n    T = {'B': E}\nelse:\n    T = {'C': E}",
        "if cuda():\n    T = {'A': E, 'B': E}\nelse:\n    T = {}\nT |= {'C': E}",
        "L = ['A']\nif cuda():\n    L = L + ['B']\nelse:\n    L = ['C']\nT = {name: E for name in L}",
        "T = {'A': E}\nS = T\nif cuda():\n    pass\nelse:\n    T.update(B=E)\nS['C'] = E",
        "try:\n    import x\n    T = {'A': E}\nexcept ImportError:\n    T = {'B': E}\nfinally:\n    T['C'] = E",
        "try:\n    T = {'A': E}\nexcept ImportError:\n    T = {'B': E}\nelse:\n    T['C'] = E",
        "match kind():\n    case 1:\n        T = {'A': E}\n    case _:\n        T = {'B': E, 'C': E}",
        "T = {}\nfor one in ('A', 'B'):\n    for other in {'C': 1}:\n        T[one] = T[other] = E",
        "T = {}\nfor n in ['A', 'B', 'C']:\n    if odd(n):\n        T[n] = E\n    else:\n        T.update({n: E})",
    ],
)
def test_what_any_branch_and_any_round_adds_is_counted(text: str) -> None:
    found = read_registry(f"E = ('module', 'Class')\n{text}\n_VLLM_MODELS = T")
    assert found.architectures == dict.fromkeys("ABC", "module:Class")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not there, or empty"),
        ('_VLLM_MODELS = {\n    "A": ("a", "A"\n', "registry.py does not parse: "),
        ("_VLLM_MODELS = \0", "registry.py does not parse: "),
        ("from elsewhere import *\n_VLLM_MODELS = load()", "no table _VLLM_MODELS that can be read"),
    ],
)
def test_a_registry_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    found = read_registry(text)
    assert problem in found.problem
    assert found.architectures == {}


def test_nothing_of_the_module_is_run() -> None:
    assert read_registry("raise SystemExit(3)\n__import__('os').abort()").architectures == {}


@pytest.mark.parametrize(
    ("version", "count", "types"),
    [
        ("0.8.5", 22, {"RefinedWeb", "chatglm", "mllama"}),  # classes by name, a union with a second table
        ("0.17.0", 37, {"deepseek_v32", "qwen3_5_moe"}),
        ("0.32.0", 51, {"unlimited-ocr", "deepseek_v41"}),  # keywords of a class, and keys that are no keywords
    ],
)
def test_model_types_that_vllm_has_a_configuration_for(version: str, count: int, types: set[str]) -> None:
    found = vllm_config_types(recorded()[f"vllm/{version}/config.py"])
    assert len(found) == count
    assert types <= set(found)


def test_model_types_that_transformers_knows() -> None:
    files = recorded()
    old = transformers_types("", files["transformers/4.57.6/configuration_auto.py"])
    new = transformers_types(
        files["transformers/5.19.0/auto_mappings.py"], files["transformers/5.19.0/configuration_auto.py"]
    )
    assert (len(old), len(new)) == (421, 727)
    assert ["qwen3_5_moe" in types for types in (old, new)] == [False, True]
    assert {"gpt-sw3", "mlcd", "qwen3_moe"} <= set(new)  # added to the table, by `update` and by a union


def test_tables_that_are_not_there_name_no_model_type() -> None:
    assert vllm_config_types("") == transformers_types("", "") == transformers_types("(", "(") == ()
