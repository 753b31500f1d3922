"""What all declarations share: frozen, no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

# Names become asset keys, container names, labels and file names: one alphabet that is safe in all of them.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class Declaration(BaseModel):
    """A block of a YAML file. Unknown keys are refused: a misspelt key must not be silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Record(BaseModel):
    """A fact that the pipeline wrote down. Unknown keys are refused, so that an old reader never half-reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
