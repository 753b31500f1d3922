"""Records under data/state: written whole or not at all, read with their schema checked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from spark_pipeline.errors import StateError
from spark_pipeline.spec.base import Record

R = TypeVar("R", bound=Record)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`: temporary file, fsync, rename. A reader sees the old or the new, never a torn file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write(path: Path, record: Record) -> None:
    """Write `record` as JSON, atomically."""
    write_text(path, record.model_dump_json(indent=2) + "\n")


def read(path: Path, kind: type[R]) -> R | None:
    """The record at `path`, None where there is none.

    Raises:
        StateError: the file is there but is not a `kind` of this schema version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise StateError(
            f"{path} is not a {kind.__name__} of schema version {kind.model_fields['schema_version'].default}",
            observed=str(error).splitlines()[0],
            remedy=f"move {path} away; the next run writes it anew",
        ) from error
