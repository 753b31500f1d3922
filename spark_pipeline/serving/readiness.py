"""Waiting for the engine, by evidence: every rank's container is looked at, not only the head's port.

Today's launchers wait for a port that will never open while a rank on another node is dead (facts: rivals, row 6).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_pipeline.cluster.containers import keep_log
from spark_pipeline.cluster.generation import Generation, Rank
from spark_pipeline.errors import (
    CommandTimeoutError,
    EngineExitedError,
    ReadinessTimeoutError,
    UnreachableError,
    WrongAnswerError,
)
from spark_pipeline.fleet.docker import Container, Docker
from spark_pipeline.fleet.progress import human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving import api

POLL_SECONDS = 0.5
LOOK_AT_CONTAINERS_EVERY_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0
DEAF_SECONDS = 300.0
# They stand last and say nothing: the cause stands above them (facts: vllm_cpu part 3).
_EMPTY_ENDINGS = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See (root cause|stack trace)"
    r"|resource_tracker|leaked (semaphore|shared_memory)|For further information visit|\d+ validation error"
)
# Pydantic puts the cause on the line below: '  Value error, Model architectures [...] are not supported for now.'
_EXCEPTION = re.compile(r"^([\w.]*(Error|Exception)(\(\w+\))?: \S|Value error, )")
_TELLING = re.compile(r"(Error|Exception)\b|No space left|Killed|out of memory")
# '(Worker pid=7) ERROR 11-30 12:31:40 [multiproc_executor.py:953] ' before what was said.
_NOISE = re.compile(
    r"^\s*(\x1b\[\d+m)?(\(\w+ pid=[^)]*\)(\x1b\[0m)?\s*)?"
    r"((INFO|WARNING|ERROR|DEBUG)\s+[\d-]+\s+[\d:.]+\s+\[[^\]]+\]\s*)?"
)


# '(APIServer pid=8) INFO 11-30 16:46:12 [utils.py:628] ': vLLM's own; Ray and torch write otherwise.
_REPORT = re.compile(r"INFO\s+\d\d-\d\d\s+[\d:]+\s+\[[^\]]+\]")


@dataclass(frozen=True)
class Ready:
    """`containers`: every rank's, by node, as they were when the wait began and still are."""

    model_id: str
    seconds: float
    containers: Mapping[str, Container | None]


def wait_until_ready(session: Session, generation: Generation) -> Ready:
    """Until /v1/models lists the served name.

    Raises:
        EngineExitedError: a rank's container ended, or was replaced; names the node and the engine's own words.
        ReadinessTimeoutError: the declared time is over.
        WrongAnswerError: something answers with other model ids.
    """
    started = time.monotonic()
    head = session.connection.host(generation.head.node)
    born = look(session, generation)
    last_look = last_said = last_answer = started
    while True:
        now = time.monotonic()
        try:
            ids = api.model_ids(head, generation.port)
            if ids is not None:
                check_model_ids(generation, ids)
                check_unchanged(session, generation, born)
                return Ready(generation.served_name, time.monotonic() - started, born)
            if now - last_look >= LOOK_AT_CONTAINERS_EVERY_SECONDS:
                last_look = now
                check_unchanged(session, generation, born)
            if now - last_said >= SAY_EVERY_SECONDS:
                last_said = now
                words = _last_words(session, generation)
                session.progress(f"engine is loading ({human_seconds(now - started)}): {words}")
            last_answer = time.monotonic()
        except (UnreachableError, CommandTimeoutError) as error:
            # A Spark that loads 60 GB may be deaf for half a minute, and laptops sleep: an hour's work is at stake.
            if time.monotonic() - last_answer > DEAF_SECONDS:
                raise
            session.progress(
                f"no word from {error.node} for {human_seconds(time.monotonic() - last_answer)}: {error.what}"
            )
        if now - started > generation.start_timeout_seconds:
            raise ReadinessTimeoutError(
                f"the engine was not ready after {human_seconds(now - started)}",
                node=generation.head.node,
                observed=_last_words(session, generation),
                remedy="raise serve.start_timeout_seconds if it was still working; its log is under data/state",
            )
        time.sleep(POLL_SECONDS)


def check_model_ids(generation: Generation, ids: tuple[str, ...]) -> None:
    if generation.served_name not in ids:
        raise WrongAnswerError(
            f"port {generation.port} answers with another model",
            node=generation.head.node,
            observed=f"/v1/models lists {', '.join(ids) or 'nothing'}; declared is {generation.served_name}",
            remedy="stop the server that owns this port, or declare another serve.port",
        )


def look(session: Session, generation: Generation) -> Mapping[str, Container | None]:
    """Every rank's container by node, all nodes at once."""
    names = {rank.node: rank.container for rank in generation.ranks}
    return session.connection.each(list(names), lambda host: Docker(host).container(names[host.name]))


def check_unchanged(session: Session, generation: Generation, born: Mapping[str, Container | None]) -> None:
    """Raises EngineExitedError if a rank does not run, or is not the container that it was."""
    now = look(session, generation)
    for rank in generation.ranks:
        container, before = now[rank.node], born[rank.node]
        if container is None or before is None:
            raise EngineExitedError(
                f"rank {rank.rank}'s container {rank.container} is gone",
                node=rank.node,
                observed="somebody or something removed it",
                remedy="look for another tool that manages containers on this node, then deploy again",
            )
        if container.state != "running" or container.container_id != before.container_id:
            raise _exited(session, generation, rank, container)


def _exited(session: Session, generation: Generation, rank: Rank, container: Container) -> EngineExitedError:
    log = keep_log(session, generation, rank, Docker(session.connection.host(rank.node)))
    return EngineExitedError(
        f"rank {rank.rank}'s engine ended with status {container.exit_code}",
        node=rank.node,
        observed=first_cause(log),
        remedy=f"whole logs of every rank: {session.state_dir / 'logs'}/g{generation.number}-*.log",
    )


def first_cause(log: str) -> str:
    """The line of an engine's log that tells most: the last exception that is not the empty ending."""
    lines = [_NOISE.sub("", line).strip() for line in log.splitlines() if line.strip()]
    saying = [line for line in lines if line and not _EMPTY_ENDINGS.search(line)]
    exceptions = [line for line in saying if _EXCEPTION.search(line)]
    telling = [line for line in saying if _TELLING.search(line)]
    return (exceptions or telling or saying or ["the log is empty"])[-1][:500]


def _last_words(session: Session, generation: Generation) -> str:
    docker = Docker(session.connection.host(generation.head.node))
    return last_words(docker.logs(generation.head.container, 50))


def last_words(log: str) -> str:
    """What the engine is doing, by its own last report; other libraries' noise only where there is nothing else."""
    lines = [line for line in log.splitlines() if line.strip()]
    reports = [line for line in lines if _REPORT.search(line)]
    said = _NOISE.sub("", (reports or lines or ["no word yet"])[-1]).strip()
    return said[:120]
