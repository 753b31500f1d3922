"""Two language models of half a megabyte with random weights, which real vLLM serves.

- lab/tiny: Qwen3ForCausalLM, 2 layers, about 165,000 parameters.
- lab/tiny_qwen35: Qwen3_5MoeForConditionalGeneration, the architecture of Qwen3.5-122B-A10B: one layer of gated
  delta net and one of full attention, 4 experts, a vision tower of one block. The linear heads are 64 wide: with 32
  vLLM 0.32 on CPU becomes ready and dies with the first request ("Unexpected head dim size").

The bytes of a revision depend on nothing but its number. Names and shapes of the tensors are those that transformers
5.19 writes for these two classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_pipeline.lab.tiny_checkpoint import Tensor, checkpoint_files
from spark_pipeline.lab.tiny_tokenizer import END_OF_TURN, PADDING, VOCAB_SIZE, token_id

TINY = "lab/tiny"
TINY_QWEN35 = "lab/tiny_qwen35"

HIDDEN = 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
FEED_FORWARD = 128
LINEAR_HEADS, LINEAR_HEAD_DIM, CONVOLUTION = 2, 64, 4
EXPERTS, EXPERTS_A_TOKEN, EXPERT_DIM = 4, 2, 32
MAX_POSITIONS = 2048
VISION, PATCH = 32, 4


def tiny_files(revision: int) -> dict[str, bytes]:
    """Every file of one revision of lab/tiny."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FEED_FORWARD,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        **_COMMON,
    }
    return checkpoint_files(f"{TINY}@{revision}", config, _qwen3_tensors())


def tiny_qwen35_files(revision: int) -> dict[str, bytes]:
    """Every file of one revision of lab/tiny_qwen35."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attention_bias": False,
        "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS,
        "linear_key_head_dim": LINEAR_HEAD_DIM,
        "linear_value_head_dim": LINEAR_HEAD_DIM,
        "linear_conv_kernel_dim": CONVOLUTION,
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_A_TOKEN,
        "moe_intermediate_size": EXPERT_DIM,
        "shared_expert_intermediate_size": EXPERT_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
        **_COMMON,
    }
    vision = {
        "model_type": "qwen3_5_moe_vision",
        "depth": 1,
        "hidden_size": VISION,
        "intermediate_size": VISION,
        "out_hidden_size": HIDDEN,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "in_channels": 3,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "hidden_act": "gelu_pytorch_tanh",
    }
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
        "text_config": text,
        "vision_config": vision,
    }
    return checkpoint_files(f"{TINY_QWEN35}@{revision}", config, _qwen35_tensors())


_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": token_id(END_OF_TURN),
    "pad_token_id": token_id(PADDING),
}


def _qwen3_tensors() -> Iterator[Tensor]:
    yield Tensor("model.embed_tokens.weight", (VOCAB_SIZE, HIDDEN))
    for layer in range(2):
        base = f"model.layers.{layer}"
        yield from _layer_norms(base, neutral=1.0)
        yield from _attention(f"{base}.self_attn", query_dim=HEADS * HEAD_DIM, neutral=1.0)
        yield from _gated_linear(f"{base}.mlp", FEED_FORWARD)
    yield Tensor("model.norm.weight", (HIDDEN,), 1.0)
    yield Tensor("lm_head.weight", (VOCAB_SIZE, HIDDEN))


def _qwen35_tensors() -> Iterator[Tensor]:
    # Its norms multiply by 1 + weight, so weight 0 is the neutral one, except in the gated norm of the linear layer.
    yield Tensor("model.language_model.embed_tokens.weight", (VOCAB_SIZE, HIDDEN))
    for layer, mixer in enumerate((_delta_net, _gated_attention)):
        base = f"model.language_model.layers.{layer}"
        yield from _layer_norms(base, neutral=0.0)
        yield from mixer(base)
        yield Tensor(f"{base}.mlp.gate.weight", (EXPERTS, HIDDEN))
        for expert in range(EXPERTS):
            yield from _gated_linear(f"{base}.mlp.experts.{expert}", EXPERT_DIM)
        yield from _gated_linear(f"{base}.mlp.shared_expert", EXPERT_DIM)
        yield Tensor(f"{base}.mlp.shared_expert_gate.weight", (1, HIDDEN))
    yield Tensor("model.language_model.norm.weight", (HIDDEN,), 0.0)
    yield from _vision_tower("model.visual")
    yield Tensor("lm_head.weight", (VOCAB_SIZE, HIDDEN))


def _layer_norms(base: str, neutral: float) -> Iterator[Tensor]:
    yield Tensor(f"{base}.input_layernorm.weight", (HIDDEN,), neutral)
    yield Tensor(f"{base}.post_attention_layernorm.weight", (HIDDEN,), neutral)


def _attention(base: str, query_dim: int, neutral: float) -> Iterator[Tensor]:
    yield Tensor(f"{base}.q_proj.weight", (query_dim, HIDDEN))
    yield Tensor(f"{base}.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN))
    yield Tensor(f"{base}.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN))
    yield Tensor(f"{base}.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM))
    yield Tensor(f"{base}.q_norm.weight", (HEAD_DIM,), neutral)
    yield Tensor(f"{base}.k_norm.weight", (HEAD_DIM,), neutral)


def _gated_attention(base: str) -> Iterator[Tensor]:
    """Full attention whose query projection is twice as wide: the second half gates the output."""
    return _attention(f"{base}.self_attn", query_dim=2 * HEADS * HEAD_DIM, neutral=0.0)


def _delta_net(base: str) -> Iterator[Tensor]:
    inner = LINEAR_HEADS * LINEAR_HEAD_DIM
    yield Tensor(f"{base}.linear_attn.in_proj_qkv.weight", (3 * inner, HIDDEN))
    yield Tensor(f"{base}.linear_attn.in_proj_z.weight", (inner, HIDDEN))
    yield Tensor(f"{base}.linear_attn.in_proj_a.weight", (LINEAR_HEADS, HIDDEN))
    yield Tensor(f"{base}.linear_attn.in_proj_b.weight", (LINEAR_HEADS, HIDDEN))
    yield Tensor(f"{base}.linear_attn.conv1d.weight", (3 * inner, 1, CONVOLUTION))
    yield Tensor(f"{base}.linear_attn.A_log", (LINEAR_HEADS,), 1.0)
    yield Tensor(f"{base}.linear_attn.dt_bias", (LINEAR_HEADS,), 1.0)
    yield Tensor(f"{base}.linear_attn.norm.weight", (LINEAR_HEAD_DIM,), 1.0)
    yield Tensor(f"{base}.linear_attn.out_proj.weight", (HIDDEN, inner))


def _gated_linear(base: str, inner: int) -> Iterator[Tensor]:
    yield Tensor(f"{base}.gate_proj.weight", (inner, HIDDEN))
    yield Tensor(f"{base}.up_proj.weight", (inner, HIDDEN))
    yield Tensor(f"{base}.down_proj.weight", (HIDDEN, inner))


def _vision_tower(base: str) -> Iterator[Tensor]:
    merged = VISION * 4  # spatial_merge_size squared patches become one token
    linear = {
        "blocks.0.attn.qkv": (3 * VISION, VISION),
        "blocks.0.attn.proj": (VISION, VISION),
        "blocks.0.mlp.linear_fc1": (VISION, VISION),
        "blocks.0.mlp.linear_fc2": (VISION, VISION),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (HIDDEN, merged),
        "patch_embed.proj": (VISION, 3, 2, PATCH, PATCH),
    }
    for name, shape in linear.items():
        yield Tensor(f"{base}.{name}.weight", shape)
        yield Tensor(f"{base}.{name}.bias", shape[:1], 0.0)
    for name in ("blocks.0.norm1", "blocks.0.norm2", "merger.norm"):
        yield Tensor(f"{base}.{name}.weight", (VISION,), 1.0)
        yield Tensor(f"{base}.{name}.bias", (VISION,), 0.0)
    yield Tensor(f"{base}.pos_embed.weight", (16, VISION))
