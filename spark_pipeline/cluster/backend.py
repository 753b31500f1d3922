"""Ray or vLLM's own multi-node mode: what the image can do decides, and the reason is kept."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.errors import ClusterError
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.spec.deployment import Backend, Deployment


@dataclass(frozen=True)
class BackendChoice:
    backend: Backend
    reason: str


def choose_backend(deployment: Deployment, engine: EngineFacts) -> BackendChoice:
    """The declared backend if the image can do it; for `auto` Ray where the image carries it, else mp.

    One rank needs neither: it runs under vLLM's mp executor on its own node.

    Raises:
        ClusterError: what is declared needs something that the image lacks.
    """
    declared = deployment.backend
    if deployment.parallel.world_size == 1:
        return BackendChoice(Backend.MP, "mp: one rank needs no cluster")
    if declared is Backend.RAY and engine.ray is None:
        raise ClusterError(
            "backend ray is declared, but the image carries no Ray",
            observed=f"vllm {engine.vllm}, no distribution named ray",
            remedy="declare `backend: mp` or `auto`, or choose an image with Ray",
        )
    if declared is Backend.MP and not engine.supports_nnodes:
        raise ClusterError(
            "backend mp is declared, but the image's vLLM knows no --nnodes",
            observed=f"vllm {engine.vllm}; --nnodes came with 0.11.1",
            remedy="declare `backend: ray` or `auto`, or choose a newer image",
        )
    if isinstance(declared, Backend):
        return BackendChoice(declared, f"{declared.value}: declared")
    if engine.ray is not None:
        return BackendChoice(Backend.RAY, f"ray: the image carries Ray {engine.ray}")
    if engine.supports_nnodes:
        return BackendChoice(Backend.MP, f"mp: the image has no Ray, and vLLM {engine.vllm} knows --nnodes")
    raise ClusterError(
        f"{deployment.parallel.world_size} nodes cannot be joined with this image",
        observed=f"vllm {engine.vllm}: no Ray in the image, and no --nnodes (came with 0.11.1)",
        remedy="choose an image with Ray or a vLLM of 0.11.1 or later",
    )
