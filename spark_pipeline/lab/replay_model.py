"""A repository of the size that scenario.md tells of: Qwen3.5-122B-A10B-FP8 with real headers and no weights.

Everything that is asked of a model before its download is there: config.json, an index, and 39 shards whose headers
name every tensor with data type, shape and place. The weights behind the headers are a hole in the file, so 124 GB
take about 19 MB of disk (75,000 names with their shapes, twice). It is for asking, not for downloading: hub_store.py.

Names are those of transformers' class. Layers, experts and widths are not known for certain; these give what is
known (123B parameters, 119 to 125 GB, 10B of them active):

    experts, 48 layers       116.0 GB   256 a layer, three matrices of 3072 x 1024, FP8 in blocks of 128 x 128
    MTP layer                  2.5 GB   one more layer with experts; a server loads it for speculative decoding only
    linear attention          1.8 GB   36 of 48 layers
    full attention            0.9 GB   12 of 48 layers, 2 KV heads of 256
    shared experts            0.5 GB
    embeddings and head       1.9 GB   BF16
    vision tower              0.9 GB   BF16, 27 blocks
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_pipeline.lab.hub_store import Holed
from spark_pipeline.lab.tiny_models import tiny_files
from spark_pipeline.lab.tiny_tokenizer import tokenizer_files

QWEN35_122B = "lab/qwen35_122b"
NO_ARCHITECTURES = "lab/no_architectures"

SHARDS = 39
HIDDEN, LAYERS, VOCABULARY = 3072, 48, 151_936
HEADS, KV_HEADS, HEAD_DIM = 32, 2, 256
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM, CONVOLUTION = 16, 32, 128, 4
EXPERTS, EXPERTS_A_TOKEN, EXPERT_DIM = 256, 8, 1024
VISION_BLOCKS, VISION, VISION_INNER, VISION_POSITIONS, PATCH, MERGE = 27, 1152, 4304, 2304, 16, 2
BLOCK = 128
FULL_ATTENTION_EVERY = 4
_BYTES = {"F8_E4M3": 1, "BF16": 2}


@dataclass(frozen=True)
class DeclaredTensor:
    """One entry of a safetensors header."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * _BYTES[self.dtype]


def qwen35_122b_files() -> dict[str, bytes | Holed]:
    """Every file of lab/qwen35_122b; the same on every machine."""
    tensors = list(_tensors())
    total_bytes = sum(tensor.size_bytes for tensor in tensors)
    shards: list[list[DeclaredTensor]] = [[] for _ in range(SHARDS)]
    done_bytes = 0
    for tensor in tensors:
        shards[done_bytes * SHARDS // total_bytes].append(tensor)
        done_bytes += tensor.size_bytes
    names = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
    weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    return {
        "README.md": b"# Qwen3.5-122B-A10B-FP8, headers only\n\nFor asking, not for downloading: no weights.\n",
        "config.json": _json(_config()),
        "generation_config.json": _json({"eos_token_id": 151645, "temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        "model.safetensors.index.json": json.dumps(index, separators=(",", ":")).encode(),
        **tokenizer_files(),
        **{name: _shard(shard) for name, shard in zip(names, shards, strict=True)},
    }


def no_architectures_files() -> dict[str, bytes]:
    """lab/tiny with a config.json that names no architecture: vLLM would serve it as an embedding model."""
    files = tiny_files(1)
    config = json.loads(files["config.json"])
    del config["architectures"]
    return {**files, "config.json": _json(config)}


def _shard(tensors: list[DeclaredTensor]) -> Holed:
    """A safetensors file up to where its data begin."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    return Holed(start, len(start) + offset)


def _tensors() -> Iterator[DeclaredTensor]:
    yield _plain("model.language_model.embed_tokens.weight", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        base = f"model.language_model.layers.{layer}"
        yield from (_full_attention(base) if _is_full(layer) else _linear_attention(base))
        yield from _experts(base)
    yield _plain("model.language_model.norm.weight", HIDDEN)
    yield from _vision_tower("model.visual")
    yield _plain("lm_head.weight", VOCABULARY, HIDDEN)
    yield from _extra_head("mtp")


def _is_full(layer: int) -> bool:
    return layer % FULL_ATTENTION_EVERY == FULL_ATTENTION_EVERY - 1


def _full_attention(base: str) -> Iterator[DeclaredTensor]:
    # The query projection is twice as wide: its second half gates the output.
    yield from _quantised(f"{base}.self_attn.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN)
    yield from _quantised(f"{base}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield from _quantised(f"{base}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield from _quantised(f"{base}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
    yield _plain(f"{base}.self_attn.q_norm.weight", HEAD_DIM)
    yield _plain(f"{base}.self_attn.k_norm.weight", HEAD_DIM)


def _linear_attention(base: str) -> Iterator[DeclaredTensor]:
    key, value = LINEAR_KEY_HEADS * LINEAR_HEAD_DIM, LINEAR_VALUE_HEADS * LINEAR_HEAD_DIM
    yield from _quantised(f"{base}.linear_attn.in_proj_qkv", 2 * key + value, HIDDEN)
    yield from _quantised(f"{base}.linear_attn.in_proj_z", value, HIDDEN)
    yield _plain(f"{base}.linear_attn.in_proj_a.weight", LINEAR_VALUE_HEADS, HIDDEN)
    yield _plain(f"{base}.linear_attn.in_proj_b.weight", LINEAR_VALUE_HEADS, HIDDEN)
    yield _plain(f"{base}.linear_attn.conv1d.weight", 2 * key + value, 1, CONVOLUTION)
    yield _plain(f"{base}.linear_attn.A_log", LINEAR_VALUE_HEADS)
    yield _plain(f"{base}.linear_attn.dt_bias", LINEAR_VALUE_HEADS)
    yield _plain(f"{base}.linear_attn.norm.weight", LINEAR_HEAD_DIM)
    yield from _quantised(f"{base}.linear_attn.out_proj", HIDDEN, value)


def _experts(base: str) -> Iterator[DeclaredTensor]:
    yield _plain(f"{base}.input_layernorm.weight", HIDDEN)
    yield _plain(f"{base}.post_attention_layernorm.weight", HIDDEN)
    yield _plain(f"{base}.mlp.gate.weight", EXPERTS, HIDDEN)
    yield _plain(f"{base}.mlp.shared_expert_gate.weight", 1, HIDDEN)
    for owner in ("shared_expert", *(f"experts.{expert}" for expert in range(EXPERTS))):
        yield from _quantised(f"{base}.mlp.{owner}.gate_proj", EXPERT_DIM, HIDDEN)
        yield from _quantised(f"{base}.mlp.{owner}.up_proj", EXPERT_DIM, HIDDEN)
        yield from _quantised(f"{base}.mlp.{owner}.down_proj", HIDDEN, EXPERT_DIM)


def _extra_head(base: str) -> Iterator[DeclaredTensor]:
    """The layer for speculative decoding: a full one, behind the model's own."""
    yield _plain(f"{base}.fc.weight", HIDDEN, 2 * HIDDEN)
    yield _plain(f"{base}.pre_fc_norm_embedding.weight", HIDDEN)
    yield _plain(f"{base}.pre_fc_norm_hidden.weight", HIDDEN)
    yield from _full_attention(f"{base}.layers.0")
    yield from _experts(f"{base}.layers.0")
    yield _plain(f"{base}.norm.weight", HIDDEN)


def _vision_tower(base: str) -> Iterator[DeclaredTensor]:
    merged = VISION * MERGE * MERGE
    yield _plain(f"{base}.pos_embed.weight", VISION_POSITIONS, VISION)
    yield from _with_bias(f"{base}.patch_embed.proj", VISION, 3, 2, PATCH, PATCH)
    for block in range(VISION_BLOCKS):
        yield from _with_bias(f"{base}.blocks.{block}.norm1", VISION)
        yield from _with_bias(f"{base}.blocks.{block}.attn.qkv", 3 * VISION, VISION)
        yield from _with_bias(f"{base}.blocks.{block}.attn.proj", VISION, VISION)
        yield from _with_bias(f"{base}.blocks.{block}.norm2", VISION)
        yield from _with_bias(f"{base}.blocks.{block}.mlp.linear_fc1", VISION_INNER, VISION)
        yield from _with_bias(f"{base}.blocks.{block}.mlp.linear_fc2", VISION, VISION_INNER)
    yield from _with_bias(f"{base}.merger.norm", VISION)
    yield from _with_bias(f"{base}.merger.linear_fc1", merged, merged)
    yield from _with_bias(f"{base}.merger.linear_fc2", HIDDEN, merged)


def _plain(name: str, *shape: int) -> DeclaredTensor:
    return DeclaredTensor(name, "BF16", shape)


def _with_bias(base: str, *shape: int) -> Iterator[DeclaredTensor]:
    yield _plain(f"{base}.weight", *shape)
    yield _plain(f"{base}.bias", shape[0])


def _quantised(base: str, outputs: int, inputs: int) -> Iterator[DeclaredTensor]:
    yield DeclaredTensor(f"{base}.weight", "F8_E4M3", (outputs, inputs))
    yield _plain(f"{base}.weight_scale_inv", math.ceil(outputs / BLOCK), math.ceil(inputs / BLOCK))


def _config() -> dict[str, Any]:
    text = {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": FULL_ATTENTION_EVERY,
        "layer_types": ["full_attention" if _is_full(layer) else "linear_attention" for layer in range(LAYERS)],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "linear_key_head_dim": LINEAR_HEAD_DIM,
        "linear_value_head_dim": LINEAR_HEAD_DIM,
        "linear_conv_kernel_dim": CONVOLUTION,
        "mamba_ssm_dtype": "float32",
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_A_TOKEN,
        "moe_intermediate_size": EXPERT_DIM,
        "shared_expert_intermediate_size": EXPERT_DIM,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
    }
    vision = {
        "model_type": "qwen3_5_moe",
        "depth": VISION_BLOCKS,
        "hidden_size": VISION,
        "intermediate_size": VISION_INNER,
        "out_hidden_size": HIDDEN,
        "num_heads": 16,
        "num_position_embeddings": VISION_POSITIONS,
        "in_channels": 3,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": MERGE,
        "hidden_act": "gelu_pytorch_tanh",
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "transformers_version": "5.2.0",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": ["lm_head", "model.visual", "model.language_model.embed_tokens", "mtp.fc"],
        },
        "text_config": text,
        "vision_config": vision,
    }


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
