"""What should run: the declaration with nothing left open. Pure: records and facts in, a `Target` out."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.cluster.backend import BackendChoice, choose_backend
from spark_pipeline.cluster.generation import spec_hash
from spark_pipeline.image.record import ImageRecord
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.fleet import Fleet, Node
from spark_pipeline.weights.record import WeightsRecord


@dataclass(frozen=True)
class Target:
    """One deployment with its revision, image and backend decided; what is observed of machines is not in it."""

    deployment: Deployment
    fleet: Fleet
    nodes: tuple[Node, ...]
    weights: WeightsRecord
    image: ImageRecord
    choice: BackendChoice

    @property
    def spec_hash(self) -> str:
        """Changes exactly when a new generation is needed."""
        serve = self.deployment.serve
        return spec_hash(
            {
                "schema": 1,
                "deployment": self.deployment.name,
                "repo": self.weights.repo,
                "commit": self.weights.commit,
                "directory": self.weights.directory,
                "image": self.image.fingerprint,
                "backend": self.choice.backend.value,
                "tensor": self.deployment.parallel.tensor,
                "pipeline": self.deployment.parallel.pipeline,
                "nodes": [[node.name, str(node.fabric)] for node in self.nodes],
                "accelerator": self.fleet.accelerator.value,
                "port": serve.port,
                "served_name": serve.served_name,
                "max_model_len": serve.max_model_len,
                "gpu_memory_utilization": str(serve.gpu_memory_utilization),
                "args": list(serve.args),
                "env": dict(serve.env),
            }
        )


def build_target(
    deployment: Deployment, fleet: Fleet, nodes: tuple[Node, ...], weights: WeightsRecord, image: ImageRecord
) -> Target:
    """Raises ClusterError when the declared backend cannot work with this image."""
    return Target(
        deployment=deployment,
        fleet=fleet,
        nodes=nodes,
        weights=weights,
        image=image,
        choice=choose_backend(deployment, image.engine),
    )
