"""What the image stage writes down, and what later stages read."""

from __future__ import annotations

from datetime import datetime

from spark_pipeline.errors import StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.project import Project


class EngineFacts(Record):
    """What an image has inside, asked of the image itself. Versions as the distributions declare them.

    Args:
        ray: None where package or program is missing.
        supports_nnodes: vLLM can span nodes without Ray (`--nnodes`, since 0.11.1).
        architecture: Docker's name: 'arm64', 'amd64'.
        cuda, nccl, flashinfer: None where the image has none, such as a build for CPUs.
    """

    vllm: str
    ray: str | None
    python: str
    torch: str | None
    transformers: str | None
    supports_nnodes: bool
    architecture: str
    cuda: str | None = None
    nccl: str | None = None
    flashinfer: str | None = None

    def versions(self) -> dict[str, str]:
        """Version by distribution, of those that are there, and of Python."""
        known = {
            "vllm": self.vllm,
            "ray": self.ray,
            "torch": self.torch,
            "transformers": self.transformers,
            "cuda": self.cuda,
            "nccl": self.nccl,
            "flashinfer": self.flashinfer,
            "python": self.python,
        }
        return {name: version for name, version in known.items() if version is not None}


class ImageRecord(Record):
    """The image that every node of a deployment was proven to hold.

    Args:
        reference: what `docker run` is given, with `--pull never`: a tag of the pipeline's own, made of the
            fingerprint, so that it cannot move (docs/decisions/0020-image-identity.md).
        declared: the candidate it came from, as declared.
        digest: of the registry's manifest; None for an image that no registry was asked about.
        fingerprint: 64 hex digits over platform, layers and configuration: equal on every node.
        size_bytes: unpacked.
    """

    reference: str
    declared: str
    digest: str | None
    fingerprint: str
    size_bytes: int
    engine: EngineFacts
    run_id: str
    verified_at: datetime


def find_record(project: Project, deployment: str) -> ImageRecord | None:
    """The deployment's image; None where none was brought to the nodes yet."""
    return store.read(project.state_dir(deployment) / "image.json", ImageRecord)


def read_record(session: Session) -> ImageRecord:
    """The deployment's image.

    Raises:
        StateError: no image was brought to the nodes yet.
    """
    record = find_record(session.project, session.deployment.name)
    if record is None:
        raise StateError(
            f"no image is recorded for {session.deployment.name}",
            observed=f"{session.state_dir / 'image.json'} does not exist",
            remedy=f"materialize {session.deployment.name}/vllm_image first",
        )
    return record
