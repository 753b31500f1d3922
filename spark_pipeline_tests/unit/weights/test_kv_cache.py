"""Bytes of the KV cache, against what vLLM 0.25 said on an H200 about models of full size."""

from __future__ import annotations

import pytest

from spark_pipeline.weights.kv_cache import kv_cache_bytes_per_token
from spark_pipeline.weights.model_config import parse_config
from spark_pipeline.weights.model_facts import ModelFacts, assemble
from spark_pipeline.weights.model_files import WeightFiles

GIB = 2**30
BLOCK_TOKENS = 16
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
QWEN3_30B_A3B_FP8 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
LLAMA31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def facts_of(manifest_of):
    def make(config) -> ModelFacts:
        return assemble(manifest_of({"config.json": b"{}"}), parse_config(config), WeightFiles((), True), ())

    return make


@pytest.mark.parametrize(
    ("config", "element_bytes", "available_gib", "tokens"),
    [
        (QWEN3_8B, 2, 108.67, 791_312),
        (QWEN3_8B, 2, 108.74, 791_792),
        (QWEN3_30B_A3B_FP8, 2, 86.32, 942_880),
        (LLAMA31_8B, 1, 66.90, 1_096_096),
    ],
)
def test_vllms_own_figures_come_out_to_the_block(facts_of, config, element_bytes, available_gib, tokens):
    for_each = kv_cache_bytes_per_token(facts_of(config), 1, element_bytes=element_bytes)

    assert for_each is not None
    rounding = 0.005 * GIB / for_each + BLOCK_TOKENS
    assert available_gib * GIB / for_each == pytest.approx(tokens, abs=rounding)


def test_ranks_share_the_heads_and_each_has_at_least_one(facts_of):
    facts = facts_of(QWEN3_30B_A3B_FP8)

    assert [kv_cache_bytes_per_token(facts, ranks) for ranks in (1, 2, 4, 8)] == [98_304, 49_152, 24_576, 24_576]


def test_of_a_hybrid_model_only_layers_of_full_attention_count(facts_of):
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    text = {"num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 256, "layer_types": kinds * 12}

    facts = facts_of({"architectures": ["A"], "text_config": text})

    assert (facts.layers, facts.attention_layers) == (48, 12)
    assert kv_cache_bytes_per_token(facts, 2) == 12 * 2 * 1 * 256 * 2


def test_latent_attention_keeps_one_latent_for_all_heads_whole_on_each_rank(facts_of):
    deepseek = {"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "num_key_value_heads": 128}

    facts = facts_of({"architectures": ["A"], **deepseek, "kv_lora_rank": 512, "qk_rope_head_dim": 64})

    assert [kv_cache_bytes_per_token(facts, ranks) for ranks in (1, 2)] == [61 * 576 * 2] * 2


@pytest.mark.parametrize(
    "unclear",
    [
        {"num_hidden_layers": None},
        {"hidden_size": None},
        {"layer_types": ["never_heard_of"] * 32},
        {"layer_types": ["mamba"] * 32},
        {"index_topk": 2048},
    ],
)
def test_where_the_facts_do_not_say_enough_nothing_is_said(facts_of, unclear):
    assert kv_cache_bytes_per_token(facts_of({**LLAMA31_8B, **unclear}), 1) is None
