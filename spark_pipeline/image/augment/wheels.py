"""Wheels on the orchestrator: fetched once, checked by their hash, kept by their content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_pipeline.fleet.progress import Progress
from spark_pipeline.image.augment.augmentation import Wheel


def fetch(wheels: Sequence[Wheel], cache_dir: Path, progress: Progress) -> Path:
    """The folder in which every one of the wheels lies, as `wheel_file` says; those that are there are not fetched.

    Raises:
        ImageError: the index gave no answer, or other bytes than those that were resolved.
    """
    raise NotImplementedError


def wheel_file(cache_dir: Path, wheel: Wheel) -> Path:
    """Where a wheel lies."""
    return cache_dir / "files" / wheel.sha256 / wheel.filename
