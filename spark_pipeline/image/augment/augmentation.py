"""What is to be built onto an image, decided and complete: two builds of the same record give the same image."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from spark_pipeline.image.answer import Part

# `localhost/`: should a node ever lack it, no public registry is asked for a name that anybody could register there.
OWN_NAME = "localhost/spark-pipeline/augmented"
LABEL_KEY = "spark_pipeline.augment.key"
LABEL_BASE = "spark_pipeline.augment.base"
LABEL_DONOR = "spark_pipeline.augment.donor"
LABEL_ADDED = "spark_pipeline.augment.added"
LABEL_REASON = "spark_pipeline.augment.reason"


class AugmentKind(StrEnum):
    """What is added."""

    RAY = "ray"
    GRAFT = "graft"


class Wheel(Part):
    """A built distribution, as an index has it.

    Args:
        size_bytes: None where the index does not tell before the download.
    """

    name: str
    version: str
    filename: str
    sha256: str
    size_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


class Side(Part):
    """One of the images that take part.

    Args:
        declared: the candidate, as declared.
        python: its executable that has the vLLM which serves.
        directory: of its package vllm.
        vllm: its version.
        user: that the image runs as; '' for root.
    """

    declared: str
    fingerprint: str
    python: str
    directory: str
    vllm: str
    user: str = ""


class Augmentation(Part):
    """What is built, from what, and why.

    Args:
        added: what the image has more than its base: 'ray==2.53.0', or 'Architecture=module:Class' of a graft.
        reason: one sentence for a person. Not part of the image's identity: another wording builds nothing anew.
        tag: of the image; made of everything that decides what is in it.
        wheels: in the order in which they are installed; none for a graft.
        installer: pip, which the image may lack.
        donor: of a graft.
        entries: of a graft: architecture -> 'module:Class', as the donor's registry has them.
    """

    kind: AugmentKind
    base: Side
    added: tuple[str, ...]
    reason: str
    tag: str = ""
    wheels: tuple[Wheel, ...] = ()
    installer: Wheel | None = None
    donor: Side | None = None
    entries: dict[str, str] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """16 hex digits; equal for equal images."""
        return self.tag.rpartition(":")[2]

    @property
    def files(self) -> tuple[Wheel, ...]:
        """All wheels that the build needs."""
        return (*self.wheels, *((self.installer,) if self.installer else ()))
