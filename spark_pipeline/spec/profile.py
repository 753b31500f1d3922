"""How a deployment is measured, as declared in data/profiles/*.yaml."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from spark_pipeline.spec.base import Declaration, Name


class Point(Declaration):
    """One measurement: a fixed number of requests in flight until all are answered."""

    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    requests: int = Field(ge=1, description="In all; at least as many as `concurrency`.")

    @model_validator(mode="after")
    def _enough_requests(self) -> Self:
        if self.requests < self.concurrency:
            raise ValueError(f"requests ({self.requests}) must be at least concurrency ({self.concurrency})")
        return self


class Profile(Declaration):
    """A named list of points."""

    name: Name
    description: str = ""
    points: tuple[Point, ...] = Field(min_length=1)
