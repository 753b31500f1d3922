"""What will be measured, and with which words. Pure: same generation, profiles, history and salt, same plan."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from spark_pipeline.benchmark.native import METRICS, PERCENTILES
from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.fleet.docker import exec_command
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.spec.profile import Point, Profile

STAGE = "benchmark_results"

# A run slower than this is taken for hung: one token a second for each stream, prompts read at 50 tokens a second,
# and five minutes for the tool to import vLLM and read the tokenizer (7 to 20 s seen on two busy cores).
_SLOWEST_STREAM_TOKENS_PER_SECOND = 1
_SLOWEST_PREFILL_TOKENS_PER_SECOND = 50
_START_SECONDS = 300

_WARM_UP_OUTPUT_TOKENS = 16


@dataclass(frozen=True)
class Run:
    """One call of the load generator inside the head's serving container.

    Args:
        result_file: where the tool writes its JSON, inside the container.
        argv: the words, as the container's process sees them.
        timeout_seconds: after which the tool is ended inside the container.
    """

    profile: str
    point: Point
    seed: int
    result_file: str
    argv: tuple[str, ...]
    timeout_seconds: int

    @property
    def title(self) -> str:
        point = self.point
        return f"{self.profile}: {point.input_tokens} in, {point.output_tokens} out, concurrency {point.concurrency}"


@dataclass(frozen=True)
class BenchmarkPlan:
    """The runs in order: a warm-up whose numbers are thrown away, then the points."""

    generation: Generation
    warm_up: Run | None
    runs: tuple[Run, ...]
    reasons: tuple[str, ...]

    def stage_plan(self) -> StagePlan:
        head = self.generation.head
        runs = (self.warm_up, *self.runs) if self.warm_up else self.runs
        return StagePlan(
            stage=STAGE,
            changes=bool(self.runs),
            reasons=self.reasons,
            commands=tuple(Command(head.node, exec_command(head.container, run.argv)) for run in runs),
        )


def shape(profile: str, point: Point) -> tuple[str, int, int, int, int]:
    """What BenchmarkPoint.shape says of a measured one."""
    return (profile, point.input_tokens, point.output_tokens, point.concurrency, point.requests)


def plan_benchmark(
    generation: Generation,
    profiles: Sequence[Profile],
    history: Sequence[BenchmarkPoint],
    *,
    salt: str,
    force: bool = False,
) -> BenchmarkPlan:
    """Which points of `profiles` are still to be measured on `generation`.

    Args:
        history: points measured before; those of the same spec_hash are not repeated unless `force`.
        salt: something no run had before. Seeds are drawn from it: a seed used twice sends the same prompts twice,
            and the engine's prefix cache then answers (vllm issue 54227).

    Raises:
        BenchmarkError: a point does not fit into the served context length.
    """
    _refuse_too_long(generation, profiles)
    measured = {point.shape for point in history if point.spec_hash == generation.spec_hash}
    wanted = [(profile.name, point) for profile in profiles for point in profile.points]
    missing = [(name, point) for name, point in wanted if force or shape(name, point) not in measured]
    runs = tuple(_run(generation, name, point, salt=f"{salt}/{index}") for index, (name, point) in enumerate(missing))
    warm_up = _warm_up(generation, missing, salt=f"{salt}/warm-up") if missing else None
    return BenchmarkPlan(generation, warm_up, runs, _reasons(generation, len(wanted), len(missing), force=force))


def _reasons(generation: Generation, wanted: int, missing: int, *, force: bool) -> tuple[str, ...]:
    what = f"generation {generation.number} (spec {generation.spec_hash})"
    if not wanted:
        return ("the deployment names no profile under benchmark.profiles",)
    if not missing:
        return (f"all {wanted} points were measured before with this spec ({generation.spec_hash})",)
    first = f"all {wanted} points are measured again" if force else f"{missing} of {wanted} points are not measured yet"
    return (
        f"{first}: {what}",
        "the load comes from `vllm bench serve` inside the head's serving container: no install, no internet, the "
        "engine's own version, the tokenizer beside the weights",
        "/v1/completions, not chat: no chat template adds tokens and no reasoning parser hides any, so a point has "
        "exactly its declared length",
        "one warm-up of its own: the tool's own warm-up repeats the first prompt, which would then come from the cache",
    )


def _refuse_too_long(generation: Generation, profiles: Sequence[Profile]) -> None:
    limit = generation.max_model_len
    for profile in profiles:
        for point in profile.points:
            if limit is not None and point.input_tokens + point.output_tokens > limit:
                raise BenchmarkError(
                    f"profile {profile.name} does not fit: the engine would refuse every request",
                    observed=f"{point.input_tokens} + {point.output_tokens} tokens, served context {limit}",
                    remedy="raise serve.max_model_len, or give the deployment a profile of shorter points",
                )


def _warm_up(generation: Generation, missing: Sequence[tuple[str, Point]], *, salt: str) -> Run:
    """As many streams as the widest point has, short answers: kernels and caches, not numbers."""
    widest = max((point for _, point in missing), key=lambda point: (point.concurrency, point.input_tokens))
    point = Point(
        input_tokens=widest.input_tokens,
        output_tokens=min(widest.output_tokens, _WARM_UP_OUTPUT_TOKENS),
        concurrency=widest.concurrency,
        requests=widest.concurrency,
    )
    return _run(generation, "warm-up", point, salt=salt)


def _run(generation: Generation, profile: str, point: Point, *, salt: str) -> Run:
    seed = int(hashlib.sha256(salt.encode()).hexdigest()[:8], 16) >> 1  # numpy wants less than 2**32
    file = f"spark_pipeline_benchmark_{seed}.json"
    timeout_seconds = _timeout_seconds(point)
    return Run(
        profile=profile,
        point=point,
        seed=seed,
        result_file=f"/tmp/{file}",  # noqa: S108  the container's own /tmp
        argv=(*_guard_words(timeout_seconds), *_bench_words(generation, point, seed, file)),
        timeout_seconds=timeout_seconds,
    )


def _guard_words(timeout_seconds: int) -> tuple[str, ...]:
    """Offline: a tokenizer file that is missing in the directory fails at once, instead of asking the hub for it.
    Ended in the container: `docker exec` leaves its process running when the caller goes away."""
    return ("env", "HF_HUB_OFFLINE=1", "timeout", "-k", "10", str(timeout_seconds))


def _bench_words(generation: Generation, point: Point, seed: int, file: str) -> tuple[str, ...]:
    """Only flags that vLLM 0.14.1, 0.17.0 and 0.32.0 all know (read in their vllm/benchmarks/serve.py)."""
    return (
        "vllm", "bench", "serve",
        "--backend", "openai",
        "--base-url", f"http://127.0.0.1:{generation.port}",
        "--endpoint", "/v1/completions",
        "--model", generation.model_directory,
        "--served-model-name", generation.served_name,
        "--tokenizer", generation.model_directory,
        *_tokenizer_words(generation.serve_args),
        "--dataset-name", "random",
        "--random-input-len", str(point.input_tokens),
        "--random-output-len", str(point.output_tokens),
        "--ignore-eos",
        "--num-prompts", str(point.requests),
        "--max-concurrency", str(point.concurrency),
        "--num-warmups", "0",
        "--temperature", "0",
        "--seed", str(seed),
        "--percentile-metrics", ",".join(METRICS),
        "--metric-percentiles", ",".join(str(rank) for rank in PERCENTILES),
        "--disable-tqdm",
        "--save-result",
        "--result-dir", "/tmp",  # noqa: S108
        "--result-filename", file,
    )  # fmt: skip


def _tokenizer_words(serve_args: Sequence[str]) -> tuple[str, ...]:
    """What the engine was told about the tokenizer holds for the load generator too."""
    words: list[str] = []
    for index, word in enumerate(serve_args):
        if word == "--trust-remote-code" or word.startswith("--tokenizer-mode="):
            words.append(word)
        elif word == "--tokenizer-mode":
            words += serve_args[index : index + 2]
    return tuple(words)


def _timeout_seconds(point: Point) -> int:
    rounds = ceil(point.requests / point.concurrency)
    prefill = point.input_tokens * point.concurrency / _SLOWEST_PREFILL_TOKENS_PER_SECOND
    return _START_SECONDS + ceil(rounds * (prefill + point.output_tokens / _SLOWEST_STREAM_TOKENS_PER_SECOND))
