"""Proof that what answers is what the numbers will be written down for: same containers, same model, untouched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_pipeline.cluster.generation import LABEL, Generation, Rank
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Container, Docker
from spark_pipeline.fleet.host import Host

PROBE = Path(__file__).with_name("probe.py")
_PROBE_TIMEOUT_SECONDS = 60


class Endpoint(BaseModel):
    """What probe.py saw. Counters are since the engine's start; None where it publishes none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: str | None = None
    models: tuple[str, ...] = ()
    prompt_tokens_looked_up: float | None = None
    prompt_tokens_cached: float | None = None
    requests_finished: float | None = None


@dataclass(frozen=True)
class Incarnation:
    """One container's life; another start is another one."""

    node: str
    container: str
    container_id: str
    started_at: str


@dataclass(frozen=True)
class Sighting:
    """A serving generation at one moment."""

    incarnations: tuple[Incarnation, ...]
    endpoint: Endpoint


def sight(connection: FleetConnection, generation: Generation) -> Sighting:
    """Look at every rank's container, and at the endpoint from inside the head's.

    Raises:
        BenchmarkError: a container is missing, stopped or of another spec, or the endpoint does not serve the model.
    """
    ranks = {rank.node: rank for rank in generation.ranks}

    def incarnation(host: Host) -> Incarnation:
        rank = ranks[host.name]
        return _incarnation(generation, rank, Docker(host).container(rank.container))

    seen = connection.each(list(ranks), incarnation)
    endpoint = _endpoint(Docker(connection.host(generation.head.node)), generation)
    return Sighting(tuple(seen[node] for node in ranks), endpoint)


def refuse_changes(before: Sighting, after: Sighting) -> None:
    """Raises BenchmarkError when a container was started anew in between: part of the load hit a cold engine."""
    for old, new in zip(before.incarnations, after.incarnations, strict=True):
        if old != new:
            raise BenchmarkError(
                f"container {new.container} was restarted under the benchmark",
                node=new.node,
                observed=f"{old.container_id[:12]} started {old.started_at}, now {new.container_id[:12]} "
                f"started {new.started_at}",
                remedy="find out why it ended (`docker logs`), then measure again",
            )


def prefix_cache_hit_rate(before: Endpoint, after: Endpoint) -> float | None:
    """Share of the prompt tokens looked up in between that were in the cache; None when it cannot be known."""
    looked_up = _grown(before.prompt_tokens_looked_up, after.prompt_tokens_looked_up)
    cached = _grown(before.prompt_tokens_cached, after.prompt_tokens_cached)
    return min(cached / looked_up, 1.0) if looked_up and cached is not None else None


def other_requests(before: Endpoint, after: Endpoint, own: int) -> int | None:
    """Requests finished in between that were not among the `own`; None when it cannot be known."""
    finished = _grown(before.requests_finished, after.requests_finished)
    return None if finished is None else max(round(finished) - own, 0)


def _grown(before: float | None, after: float | None) -> float | None:
    # Counters appear with their first event: no `before` beside an `after` is zero.
    return None if after is None else max(after - (before or 0.0), 0.0)


def _incarnation(generation: Generation, rank: Rank, container: Container | None) -> Incarnation:
    remedy = f"materialize {generation.deployment}/serving_endpoint, then measure again"
    if container is None:
        raise BenchmarkError(f"container {rank.container} is gone", node=rank.node, remedy=remedy)
    if container.state != "running":
        raise BenchmarkError(
            f"container {rank.container} does not run",
            node=rank.node,
            observed=f"state {container.state}, exit status {container.exit_code}",
            remedy=remedy,
        )
    spec_hash = container.labels.get(LABEL + "spec_hash", "none")
    if spec_hash != generation.spec_hash:
        raise BenchmarkError(
            f"container {rank.container} is not what was recorded as serving",
            node=rank.node,
            observed=f"spec_hash {spec_hash}, recorded {generation.spec_hash}",
            remedy=remedy,
        )
    return Incarnation(rank.node, rank.container, container.container_id, container.started_at)


def _endpoint(docker: Docker, generation: Generation) -> Endpoint:
    words: Sequence[str] = ("python3", "-", str(generation.port))
    head = generation.head
    done = docker.exec(head.container, words, input=PROBE.read_text(), timeout=_PROBE_TIMEOUT_SECONDS, check=False)
    remedy = f"`spark-pipeline status`; materialize {generation.deployment}/serving_endpoint, then measure again"
    if done.status != 0:  # a container that was seen running a moment ago may be gone now
        raise BenchmarkError(
            f"the endpoint cannot be looked at inside {head.container}",
            node=head.node,
            observed=done.stderr.strip()[-500:] or f"status {done.status}",
            remedy=remedy,
        )
    try:
        endpoint = Endpoint.model_validate_json(done.stdout)
    except ValidationError as error:
        raise BenchmarkError(
            "the endpoint's probe said nothing readable", node=head.node, observed=done.stdout[:300], remedy=remedy
        ) from error
    if endpoint.error is not None:
        raise BenchmarkError(
            f"nothing answers on port {generation.port} inside {head.container}",
            node=head.node,
            observed=endpoint.error,
            remedy=remedy,
        )
    if generation.served_name not in endpoint.models:
        raise BenchmarkError(
            f"port {generation.port} serves another model",
            node=head.node,
            observed=f"{', '.join(endpoint.models) or 'no model'}; declared: {generation.served_name}",
            remedy=remedy,
        )
    return endpoint
