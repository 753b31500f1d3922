"""The architectures that the stand-in says it knows, in the shape of the real registry."""

_TEXT_GENERATION_MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}

_MULTIMODAL_MODELS = {
    "Qwen3_5ForConditionalGeneration": (
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
    ),
    "Qwen3_5MoeForConditionalGeneration": (
        "qwen3_5",
        "Qwen3_5MoeForConditionalGeneration",
    ),
}

_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}


class _Model:
    """As vLLM's: a class that is known by name, and can be inspected; nothing is imported for it here."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture

    def inspect_model_cls(self) -> dict[str, object]:
        return {"architecture": self.architecture, "is_text_generation_model": True}


class _ModelRegistry:
    def __init__(self) -> None:
        self.models = {architecture: _Model(architecture) for architecture in _VLLM_MODELS}

    def get_supported_archs(self):
        return self.models.keys()


ModelRegistry = _ModelRegistry()
