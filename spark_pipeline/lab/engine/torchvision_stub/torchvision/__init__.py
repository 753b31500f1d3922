"""A text-only stand-in for torchvision, which has no build that fits torch 2.13.0+cpu.

vLLM's Qwen3.5 imports a transformers image processor that imports torchvision, also when no image is ever sent.
Names can be imported from here; calling one says what it is.
"""

__version__ = "0.0.0+standin"


def missing(module: str):
    """A module's `__getattr__`: every public name is a function that refuses to work."""

    def __getattr__(name: str):
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        def refuse(*args: object, **kwargs: object) -> object:
            raise NotImplementedError(f"{module}.{name}: this image holds a text-only stand-in for torchvision")

        return refuse

    return __getattr__
