"""config.json as families of models write it."""

from __future__ import annotations

import json

import pytest

from spark_pipeline.lab.tiny_models import tiny_qwen35_files
from spark_pipeline.weights.model_config import (
    describe_quantization,
    extra_head_layers,
    is_extra_head,
    parse_config,
)


def test_a_plain_model():
    found = parse_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            "transformers_version": "4.57.6",
            "auto_map": {"AutoModel": "modeling.Own"},
        }
    )

    assert (found.architectures, found.model_type) == (("LlamaForCausalLM",), "llama")
    assert (found.layers, found.attention_layers, found.kv_heads, found.head_dim) == (32, 32, 8, 128)
    assert found.context_tokens == 131072  # what a scaling would make of it is not guessed
    assert (found.transformers_version, found.has_remote_code, found.quantization) == ("4.57.6", True, "")


def test_a_model_that_also_sees_keeps_its_language_model_one_level_deeper():
    found = parse_config(json.loads(tiny_qwen35_files(1)["config.json"]))

    assert (found.architectures, found.model_type) == (("Qwen3_5MoeForConditionalGeneration",), "qwen3_5_moe")
    assert (found.layers, found.attention_layers, found.kv_heads, found.head_dim) == (2, 1, 2, 32)
    assert found.context_tokens == 2048


def test_a_model_that_also_hears_keeps_it_two_levels_deeper():
    text = {"num_hidden_layers": 48, "max_position_embeddings": 65536}

    found = parse_config({"architectures": ["A"], "thinker_config": {"text_config": text, "audio_config": {}}})

    assert (found.layers, found.context_tokens, found.kv_heads, found.head_dim) == (48, 65536, None, None)


@pytest.mark.parametrize(
    ("config", "layers", "attention", "kv_heads", "head_dim"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 12, 12, 12, 64),
        ({"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}, 32, 32, 1, 64),
        ({"num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2}, 28, 28, 2, None),
        ({"num_hidden_layers": 48, "full_attention_interval": 4, "head_dim": 256}, 48, 12, None, 256),
        ({"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}, 6, 1, None, None),
        ({"num_hidden_layers": 4, "layers_block_type": ["mamba", "attention"] * 2}, 4, 2, None, None),
        ({"num_hidden_layers": 4, "hybrid_override_pattern": "M-M*"}, 4, 1, None, None),
        ({"num_hidden_layers": 2, "num_key_value_heads": [2, 4], "num_attention_heads": 8}, 2, 2, None, None),
        ({"num_hidden_layers": "2", "num_attention_heads": True}, None, None, None, None),
        ({}, None, None, None, None),
    ],
)
def test_the_same_fact_has_several_names(config, layers, attention, kv_heads, head_dim):
    found = parse_config({"architectures": ["A"], **config})

    assert (found.layers, found.attention_layers, found.kv_heads, found.head_dim) == (
        layers,
        attention,
        kv_heads,
        head_dim,
    )


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, ""),
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8 e4m3"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors float-quantized"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            "compressed-tensors nvfp4-pack-quantized",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt nvfp4"),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}},
            "modelopt nvfp4",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq 4 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "awq 4 bits"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": []}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, "bitsandbytes 8 bits"),
        ({"bits": 4}, "unnamed 4 bits"),
    ],
)
def test_quantization_is_told_as_method_and_format(declared, said):
    assert describe_quantization(declared) == said


def test_quantization_may_stand_with_the_language_model_or_in_a_file_of_its_own():
    fp8 = {"quant_method": "fp8", "fmt": "e4m3"}

    assert parse_config({"text_config": {"quantization_config": fp8}}).quantization == "fp8 e4m3"
    assert parse_config({"compression_config": {"quant_method": "compressed-tensors"}}).quantization == (
        "compressed-tensors"
    )
    own_file = {"quantization": {"quant_algo": "FP8"}}
    assert parse_config({}, own_file).quantization == "modelopt fp8"
    assert parse_config({"quantization_config": fp8}, own_file).quantization == "fp8 e4m3"


@pytest.mark.parametrize(
    ("tensor", "is_extra"),
    [
        ("mtp.fc.weight", True),
        ("mtp.layers.0.mlp.gate.weight", True),
        ("model.mtp_layers.1.input_proj.weight", True),
        ("model.layers.61.eh_proj.weight", True),
        ("model.language_model.layers.61.mlp.gate.weight", True),
        ("language_model.model.layers.61.mlp.gate.weight", True),
        ("model.layers.60.mlp.gate.weight", False),
        ("model.layers.6.mlp.experts.61.up_proj.weight", False),
        ("model.visual.layers.70.norm.weight", False),
        ("vision_tower.encoder.layers.70.norm.weight", False),
        ("lm_head.weight", False),
        ("model.norm.weight", False),
    ],
)
def test_tensors_of_extra_heads_are_told_from_the_models_own(tensor, is_extra):
    assert is_extra_head(tensor, 61) is is_extra


def test_without_a_number_of_layers_no_numbered_layer_is_taken_for_an_extra_one():
    assert not is_extra_head("model.layers.61.eh_proj.weight", None)


@pytest.mark.parametrize(
    ("tensors", "layers"),
    [
        ([], 0),
        (["mtp.fc.weight", "mtp.layers.0.a", "mtp.layers.0.b"], 1),
        (["mtp.fc.weight"], 1),
        (["model.layers.61.a", "model.layers.62.a"], 2),
    ],
)
def test_extra_layers_are_counted(tensors, layers):
    assert extra_head_layers(tensors) == layers
