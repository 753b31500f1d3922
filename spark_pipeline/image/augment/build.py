"""The build on the head: a Dockerfile, wheels and our programs as one stream into `docker build`."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.fleet.docker_objects import ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.image.augment.augmentation import Augmentation


def build(
    host: Host,
    base: ImageFacts,
    augmentation: Augmentation,
    cache_dir: Path,
    progress: Progress,
    donor: ImageFacts | None = None,
) -> ImageFacts:
    """The image, built on `host` unless it is there. Cancelled or failed, it leaves nothing there.

    Args:
        base, donor: as `host` holds them.

    Raises:
        ImageError: the build would change what the base has, or failed otherwise; with what it said.
        MachineError: the node could not be asked.
    """
    raise NotImplementedError


def find(host: Host, augmentation: Augmentation) -> ImageFacts | None:
    """The image, if `host` holds it already."""
    raise NotImplementedError


def discard(host: Host, tag: str) -> None:
    """Remove an image that was built, such as one that failed its inspection. The base stays."""
    raise NotImplementedError
