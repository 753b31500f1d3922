"""Which wheels an image lacks for Ray, for the image's own platform and Python."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.fleet.progress import Progress
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Wheel


def resolve_ray(answer: ImageAnswer, architecture: str, cache_dir: Path, progress: Progress) -> tuple[Wheel, ...]:
    """Ray and those of its dependencies that the image lacks; what the image has stays as it is.

    Args:
        architecture: Docker's name: 'arm64', 'amd64'.
        cache_dir: where what was resolved before is kept, so that a tag does not move with every release on an index.

    Raises:
        ImageError: no Ray fits, something that the image has conflicts with it, or the index gave no answer.
    """
    raise NotImplementedError
