"""One measured point: the numbers, never apart from what produced them.

Words differ between tools (facts of 2026: the same word names three quantities), so the formulas stand here:

    ttft_ms   time to first token: request sent -> first streamed chunk
    tpot_ms   time per output token: (e2e - ttft) / (output tokens - 1), one value a request
    itl_ms    inter-chunk time: gap between two streamed chunks, pooled over all requests. vLLM calls it inter-token
              latency; a chunk holds several tokens with speculative decoding, so it is not a time per token
    e2e_ms    request sent -> last chunk
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from spark_pipeline.spec.base import Record
from spark_pipeline.spec.deployment import Backend

TOOL = "vllm bench serve"

Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PerSecond = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Latency(BaseModel):
    """How one duration was distributed over a point's requests, in ms. Zero means 'unmeasured' and is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: Milliseconds
    p50: Milliseconds
    p90: Milliseconds
    p95: Milliseconds
    p99: Milliseconds


class BenchmarkPoint(Record):
    """One line of data/benchmarks/<deployment>.jsonl."""

    # What was measured.
    deployment: str
    fleet: str
    nodes: tuple[str, ...]
    generation: int
    spec_hash: str
    repo: str
    commit: str
    image_declared: str
    image_reference: str
    image_fingerprint: str
    image_digest: str | None
    vllm_version: str
    ray_version: str | None
    torch_version: str | None
    transformers_version: str | None
    python_version: str | None
    backend: Backend
    tensor: int
    pipeline: int
    max_model_len: int | None
    serve_args: tuple[str, ...]

    # How.
    profile: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    seed: int
    tool: str = TOOL
    tool_version: str
    started_at: AwareDatetime
    duration_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    run_id: str
    native_file: str
    """The tool's own JSON, relative to the history file's directory."""

    # The numbers.
    completed: int
    failed: int
    input_tokens_total: int
    output_tokens_total: int
    output_tokens_per_second: PerSecond
    total_tokens_per_second: PerSecond
    requests_per_second: PerSecond
    ttft_ms: Latency
    tpot_ms: Latency | None
    """None for answers of one token: there is no second one to wait for."""
    itl_ms: Latency | None
    """Inter-chunk; None like tpot_ms."""
    e2e_ms: Latency

    # Whether anything else had a hand in them; None when the engine publishes no such counter.
    prefix_cache_hit_rate: Annotated[float, Field(ge=0, le=1)] | None
    """Share of the prompt tokens that the engine took from its prefix cache. Near 0 for new prompts; a higher one
    means that the cache was measured (vllm issue 54227: 49 times lower TTFT on a GB10)."""
    other_requests: int | None
    """Requests that the engine finished meanwhile and that were not the benchmark's."""

    @property
    def shape(self) -> tuple[str, int, int, int, int]:
        """Points of equal shape may be compared."""
        return (self.profile, self.input_tokens, self.output_tokens, self.concurrency, self.requests)

    @property
    def image_short(self) -> str:
        return self.image_fingerprint.removeprefix("sha256:")[:12]

    @property
    def commit_short(self) -> str:
        return self.commit[:12]
