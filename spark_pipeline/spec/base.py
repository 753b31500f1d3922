"""What all declarations share: frozen, no unknown keys, texts that say what they must look like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Matches:
    """A text that must match `pattern` as a whole; the error says `must`, which a person can act on, and not the
    pattern. The value itself is never repeated: a pasted URL may hold a password."""

    pattern: str
    must: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "pattern": f"^{self.pattern}$"}

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(self.must)
        return value


# Names become asset keys, container names, labels and file names: one alphabet that is safe in all of them.
Name = Annotated[
    str,
    Matches(
        r"[a-z][a-z0-9_]{0,39}",
        "write at most 40 lower-case letters, digits and underscores, the first a letter, such as qwen35_122b",
    ),
]


class Declaration(BaseModel):
    """A block of a YAML file. Unknown keys are refused: a misspelt key must not be silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Record(BaseModel):
    """A fact that the pipeline wrote down. Unknown keys are refused, so that an old reader never half-reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
