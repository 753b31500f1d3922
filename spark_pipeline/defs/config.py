"""What a run may be told beyond the declarations; everything left out follows the declaration."""

from __future__ import annotations

import dagster as dg
from pydantic import Field


class CompatibilityConfig(dg.Config):
    """For compatibility_report: what model_weights and vllm_image of the same run are told, too."""

    revision: str | None = Field(
        default=None, description="Branch, tag or commit to judge instead of the declared one, for this run only."
    )
    digest: str | None = Field(
        default=None, description="Manifest digest (sha256:...) that the candidate must have, for this run only."
    )
    image: str | None = Field(
        default=None, description="The candidate that the digest is of, as declared; default: whichever has it."
    )


class WeightsConfig(dg.Config):
    """For model_weights."""

    revision: str | None = Field(
        default=None, description="Branch, tag or commit to take instead of the declared one, for this run only."
    )
    rehash: bool = Field(default=False, description="Read every file on every node again, whatever was proven before.")


class ImageConfig(dg.Config):
    """For vllm_image."""

    digest: str | None = Field(
        default=None, description="Manifest digest (sha256:...) that the candidate must have, for this run only."
    )


class BenchmarkConfig(dg.Config):
    """For benchmark_results."""

    force: bool = Field(default=False, description="Measure again what was already measured for what is serving.")
