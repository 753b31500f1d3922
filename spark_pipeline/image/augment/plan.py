"""What is built onto which image, as data and as commands."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.fleet.docker_objects import ImageFacts
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Augmentation


def plan_ray(
    answer: ImageAnswer, base: ImageFacts, declared: str, reason: str, cache_dir: Path, progress: Progress
) -> Augmentation:
    """Ray for an image that has none. Asks the package index (once for an image), downloads nothing.

    Raises:
        ImageError: see resolve_ray.
    """
    raise NotImplementedError


def plan_graft(
    base_answer: ImageAnswer,
    donor_answer: ImageAnswer,
    architecture: str,
    base: ImageFacts,
    donor: ImageFacts,
    declared: str,
    donor_declared: str,
    reason: str,
) -> Augmentation:
    """The donor's model files for one architecture, put into the base's vLLM and registered there.

    Raises:
        ImageError: the donor's registry has no such architecture, or the base's has it.
    """
    raise NotImplementedError


def commands(augmentation: Augmentation) -> str:
    """What `build` runs on the head, for plans."""
    raise NotImplementedError
