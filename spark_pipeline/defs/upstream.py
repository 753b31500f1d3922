"""What hub and registry hold now, compared with what is deployed. No machine of the fleet is asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.image.registry import remote_digest
from spark_pipeline.serving.record import ServingRecord
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.weights.revision import Hub, ask, is_commit

ANSWER_TIMEOUT_SECONDS = 10.0
# Dagster ends a sensor's tick after 60 s; what has not answered by then is asked again at the next tick.
TICK_BUDGET_SECONDS = 30.0


@dataclass(frozen=True)
class Upstream:
    """One thing that may move while a deployment serves.

    Args:
        what: for people.
        stage, field: the asset, and the key of its run configuration, that takes exactly one value of it.
        pinned: why nothing can move, or '' if it can.
        deployed: the value that serves, '' if it came from nowhere that can be asked.
        ask: the value that is offered now; raises SparkPipelineError.
    """

    what: str
    stage: str
    field: str
    pinned: Callable[[Deployment, ServingRecord], str]
    deployed: Callable[[ServingRecord], str]
    ask: Callable[[Deployment, ServingRecord], str]


def _revision_pinned(deployment: Deployment, _: ServingRecord) -> str:
    return "the declared revision is a commit: it cannot move" if is_commit(deployment.model.revision) else ""


def _hub_commit(deployment: Deployment, _: ServingRecord) -> str:
    model = deployment.model
    return ask(Hub.of(model), model.repo, model.revision, timeout_seconds=ANSWER_TIMEOUT_SECONDS).commit


def _image_pinned(_: Deployment, record: ServingRecord) -> str:
    return "the declared image is named by digest: it cannot move" if "@" in record.generation.image_declared else ""


MODEL_REVISION = Upstream(
    what="model revision",
    stage="model_weights",
    field="revision",
    pinned=_revision_pinned,
    deployed=lambda record: record.generation.commit,
    ask=_hub_commit,
)

VLLM_IMAGE = Upstream(
    what="image digest",
    stage="vllm_image",
    field="digest",
    pinned=_image_pinned,
    deployed=lambda record: record.generation.image_digest or "",
    ask=lambda _, record: remote_digest(record.generation.image_declared, ANSWER_TIMEOUT_SECONDS),
)


@dataclass(frozen=True)
class Answer:
    """Either a value, or why there is none."""

    value: str = ""
    problem: str = ""


def ask_all(upstream: Upstream, served: list[tuple[Deployment, ServingRecord]]) -> dict[str, Answer]:
    """Ask for all deployments at once, by name. Never raises for the network, never takes longer than the budget."""

    def answer(item: tuple[Deployment, ServingRecord]) -> Answer:
        try:
            return Answer(value=upstream.ask(*item))
        except SparkPipelineError as error:
            return Answer(problem=": ".join(part for part in (error.what, error.observed) if part))

    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="upstream")
    futures = {deployment.name: pool.submit(answer, (deployment, record)) for deployment, record in served}
    done, _ = wait(futures.values(), timeout=TICK_BUDGET_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    late = Answer(problem=f"no answer within {TICK_BUDGET_SECONDS:g} s")
    return {name: future.result() if future in done else late for name, future in futures.items()}
