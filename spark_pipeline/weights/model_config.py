"""Reading config.json: what a checkpoint says of itself, under the several names that families of models use.

Only what is written there is told. What a class of transformers would put in for a key that is absent is not guessed,
with two exceptions that all of them share: no key for KV heads means as many as attention heads, and no head_dim means
hidden size over heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Where models that also see or hear keep their language model.
_NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_EXTRA_HEADS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# Layers of different width, or a second cache beside the first: no one number of layers describes their caches.
_UNEVEN = ("global_head_dim", "block_configs", "index_topk")
_GROWING = {"full_attention", "attention", "hybrid"}
_FIXED = {"linear_attention", "sliding_attention", "chunked_attention", "conv", "mamba", "mamba2"}
# Tensors of a model's own layers, as against those of a vision tower that has layers too.
_OWN_LAYER = re.compile(r"(?:(?:model|language_model|transformer)\.)*layers\.(\d+)\.")
_EXTRA_TENSOR = re.compile(r"(?:(?:model|language_model)\.)*(?:mtp|mtp_layers)\.(?:(?:layers\.)?(\d+)\.)?")


@dataclass(frozen=True)
class ModelConfig:
    """What model_facts.ModelFacts tells from config.json; see there."""

    architectures: tuple[str, ...]
    model_type: str
    transformers_version: str
    quantization: str
    layers: int | None
    attention_layers: int | None
    kv_heads: int | None
    head_dim: int | None
    latent_dim: int | None
    context_tokens: int | None
    extra_head_layers: int
    has_remote_code: bool


def parse_config(config: Mapping[str, Any], quantization: Mapping[str, Any] | None = None) -> ModelConfig:
    """Pure.

    Args:
        quantization: hf_quant_config.json, where NVIDIA's tool puts what config.json then does not say.
    """
    text = _language_model(config)

    def number(*names: str) -> int | None:
        return next((found for name in names if (found := _number(text, name) or _number(config, name))), None)

    heads, hidden, latent = number(*_HEADS), number(*_HIDDEN), number("kv_lora_rank")
    head_dim = number("head_dim")
    if head_dim is None and heads and hidden and not latent and hidden % heads == 0:
        head_dim = hidden // heads
    layers = number(*_LAYERS)
    return ModelConfig(
        architectures=architectures(config),
        model_type=_text(config, "model_type"),
        transformers_version=_text(config, "transformers_version"),
        quantization=describe_quantization(_quantization(config, text) or quantization or {}),
        layers=layers,
        attention_layers=_attention_layers(text, layers),
        kv_heads=_kv_heads(text, number(*_KV_HEADS), heads),
        head_dim=head_dim,
        latent_dim=latent + (number("qk_rope_head_dim") or 0) if latent else None,
        context_tokens=number(*_CONTEXT),
        extra_head_layers=number(*_EXTRA_HEADS) or 0,
        has_remote_code=bool(config.get("auto_map")),
    )


def architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """As config.json names them; empty where it names none."""
    named = config.get("architectures")
    return tuple(name for name in named if isinstance(name, str) and name) if isinstance(named, list) else ()


def says_quantization(config: Mapping[str, Any]) -> bool:
    return bool(_quantization(config, _language_model(config)))


def describe_quantization(declared: Mapping[str, Any]) -> str:
    """Method and format, such as 'fp8 e4m3', 'modelopt nvfp4' or 'gptq 4 bits'; '' where nothing is declared."""
    if not declared:
        return ""
    inner = declared.get("quantization")  # hf_quant_config.json has the words one level deeper
    said = {**declared, **inner} if isinstance(inner, Mapping) else declared
    algorithm = _text(said, "quant_algo")
    method = _text(said, "quant_method") or ("modelopt" if algorithm else "unnamed")
    bits = _number(said, "bits") or _number(said, "w_bit")
    for width in (4, 8):
        bits = width if said.get(f"load_in_{width}bit") is True else bits
    how = algorithm or _text(said, "fmt") or _text(said, "format") or (f"{bits} bits" if bits else "")
    return f"{method} {how}".strip().lower()


def is_extra_head(tensor: str, layers: int | None) -> bool:
    """Whether a tensor is of a layer for speculative decoding: named mtp, or numbered behind the model's own layers,
    as DeepSeek does it."""
    if _EXTRA_TENSOR.match(tensor):
        return True
    own = _OWN_LAYER.match(tensor)
    return bool(own and layers and int(own[1]) >= layers)


def extra_head_layers(tensors: Iterable[str]) -> int:
    """How many layers such tensors make up; one where they have no numbers."""
    numbers = set()
    for tensor in tensors:
        match = _EXTRA_TENSOR.match(tensor) or _OWN_LAYER.match(tensor)
        numbers.add(match[1] if match else None)
    return len(numbers - {None}) or min(len(numbers), 1)


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            return _language_model(inner)
    return config


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for holder, name in (
        (config, "quantization_config"),
        (text, "quantization_config"),
        (config, "compression_config"),
    ):
        declared = holder.get(name)
        if isinstance(declared, Mapping) and declared:
            return declared
    return None


def _attention_layers(text: Mapping[str, Any], layers: int | None) -> int | None:
    """Layers whose cache grows with every token; the others' (linear, Mamba, sliding window) is of a fixed size."""
    if any(text.get(name) for name in _UNEVEN):
        return None
    for name in ("layer_types", "layers_block_type"):
        kinds = text.get(name)
        if isinstance(kinds, list):
            is_known = all(isinstance(kind, str) and kind in _GROWING | _FIXED for kind in kinds)
            return sum(kind in _GROWING for kind in kinds) if is_known else None
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*")
    interval = _number(text, "full_attention_interval")
    return layers // interval if layers and interval else layers


def _kv_heads(text: Mapping[str, Any], declared: int | None, heads: int | None) -> int | None:
    if declared is None and text.get("multi_query") is True:
        return 1
    if declared is None and any(isinstance(text.get(name), list) for name in _KV_HEADS):
        return None  # another number for each layer
    return declared or heads


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    return value if isinstance(value, str) else ""
