"""A stand-in for vLLM: its command line and its answers, no model. See serve.py for the faults it can play."""

import os
import socket

from vllm.model_executor.models.registry import ModelRegistry

__all__ = ["ModelRegistry", "has_fault"]
__version__ = "0.32.0+standin"


def has_fault(name: str) -> bool:
    """Whether STANDIN_FAULT asks for this fault here; of "empty_answer,never_ready@peer" the second is for one node."""
    wanted = [item.strip() for item in os.environ.get("STANDIN_FAULT", "").split(",")]
    return name in wanted or f"{name}@{socket.gethostname()}" in wanted
