"""What a token costs in the KV cache, from a model's facts alone."""

from __future__ import annotations

from spark_pipeline.weights.model_facts import ModelFacts


def kv_cache_bytes_per_token(facts: ModelFacts, tensor_parallel: int, *, element_bytes: int = 2) -> int | None:
    """Bytes on each rank for each token of each request; pure.

    Layers x 2 (key and value) x KV heads of the rank x head_dim x bytes of an element, which fits vLLM's own figures
    on a GPU to the last block. Only layers whose cache grows with every token count; what linear layers and sliding
    windows keep is of a fixed size for each request.

    Args:
        tensor_parallel: ranks that share the heads. A rank has at least one: with fewer heads than ranks each is
            kept several times. The latent of MLA is whole on every rank.
        element_bytes: 2 for bfloat16 and float16, 1 for an FP8 cache.

    Returns:
        None where the facts do not say enough.
    """
    if not facts.attention_layers:
        return None
    if facts.latent_dim:
        return facts.attention_layers * facts.latent_dim * element_bytes
    if not facts.kv_heads or not facts.head_dim:
        return None
    heads = max(1, facts.kv_heads // tensor_parallel)
    return facts.attention_layers * 2 * heads * facts.head_dim * element_bytes
