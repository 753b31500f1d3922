"""The generations that were started, under data/state/<deployment>/generations/."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.cluster.generation import LABEL, Generation
from spark_pipeline.fleet.docker import Container
from spark_pipeline.spec import store

KEEP = 5


def write_generation(state_dir: Path, generation: Generation) -> None:
    store.write(_file(state_dir, generation.number), generation)
    for old in sorted(_numbers(state_dir))[:-KEEP]:
        _file(state_dir, old).unlink(missing_ok=True)


def read_generation(state_dir: Path, number: int) -> Generation | None:
    """None where the record is lost, as in a fresh clone that meets running containers."""
    return store.read(_file(state_dir, number), Generation)


def generation_behind(state_dir: Path, container: Container) -> Generation | None:
    """The generation that this container was started for; None where its record is lost, or stands for another one.

    Numbers alone do not tell: another checkout counts its own, and its generation 1 is not ours.
    """
    number, spec_hash, run_id = (container.labels.get(LABEL + key, "") for key in ("generation", "spec_hash", "run_id"))
    written = read_generation(state_dir, int(number)) if number.isdecimal() else None
    is_same = written is not None and (written.spec_hash, written.run_id) == (spec_hash, run_id)
    return written if is_same else None


def last_number(state_dir: Path) -> int:
    """The highest number ever written, 0 if none: numbers are never used twice, even after `stop`."""
    return max(_numbers(state_dir), default=0)


def _numbers(state_dir: Path) -> list[int]:
    stems = [file.stem for file in (state_dir / "generations").glob("*.json")]
    return [int(stem) for stem in stems if stem.isdecimal()]


def _file(state_dir: Path, number: int) -> Path:
    return state_dir / "generations" / f"{number}.json"
