"""What hub and registry hold now, compared with what is deployed. No machine of the fleet is asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from spark_pipeline.cluster.generation import Generation
from spark_pipeline.defs.deployed import Deployed
from spark_pipeline.defs.jobs import op_name
from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.image.record import ImageRecord
from spark_pipeline.image.registry import remote_digest
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
        stages, field: the assets, and the key of their run configuration, that take exactly one value of it.
        pinned: why nothing can move, or '' if it can.
        value_of: the value that a generation has, '' if it came from nowhere that can be asked. The image's record
            helps where the value moved and what is behind it did not.
        ask: the value that is offered now; raises SparkPipelineError.
        also: what the first of the stages must know besides.
    """

    what: str
    stages: tuple[str, ...]
    field: str
    pinned: Callable[[Deployment, Deployed], str]
    value_of: Callable[[Generation, ImageRecord | None], str]
    ask: Callable[[Deployment, Deployed], str]
    also: Callable[[Deployed], dict[str, str]] = lambda _: {}

    def run_config(self, deployed: Deployed, value: str) -> dict[str, object]:
        """What a run is told so that it takes exactly this value."""
        name = deployed.newest.deployment
        told = {op_name(name, stage): {"config": {self.field: value}} for stage in self.stages}
        told[op_name(name, self.stages[0])]["config"] |= self.also(deployed)
        return {"ops": told}

    def good(self, deployed: Deployed) -> str:
        """The value that serves, or was good last."""
        return self.value_of(deployed.good, deployed.image)

    def is_newest(self, deployed: Deployed, offered: str) -> bool:
        """Nothing to do: it is what was good last, and a start that failed since then had no other value."""
        return offered == self.good(deployed) == self.value_of(deployed.newest, deployed.image)


def _revision_pinned(deployment: Deployment, _: Deployed) -> str:
    return "the declared revision is a commit: it cannot move" if is_commit(deployment.model.revision) else ""


def _hub_commit(deployment: Deployment, _: Deployed) -> str:
    model = deployment.model
    return ask(Hub.of(model), model.repo, model.revision, timeout_seconds=ANSWER_TIMEOUT_SECONDS).commit


def _image_pinned(_: Deployment, deployed: Deployed) -> str:
    return "the declared image is named by digest: it cannot move" if "@" in deployed.newest.image_declared else ""


def _image_digest(generation: Generation, image: ImageRecord | None) -> str:
    """A tag may be pushed anew with the same layers and configuration: the generation goes on as it is, with the digest
    that it was started with, and the image stage wrote down the digest that was proven to be the same."""
    if image is not None and image.digest and image.fingerprint == generation.image_fingerprint:
        return image.digest
    return generation.image_digest or ""


MODEL_REVISION = Upstream(
    what="model revision",
    stages=("compatibility_report", "model_weights"),
    field="revision",
    pinned=_revision_pinned,
    value_of=lambda generation, _: generation.commit,
    ask=_hub_commit,
)

VLLM_IMAGE = Upstream(
    what="image digest",
    stages=("compatibility_report", "vllm_image"),
    field="digest",
    pinned=_image_pinned,
    value_of=_image_digest,
    ask=lambda _, deployed: remote_digest(deployed.newest.image_declared, ANSWER_TIMEOUT_SECONDS),
    also=lambda deployed: {"image": deployed.newest.image_declared},
)


@dataclass(frozen=True)
class Answer:
    """Either a value, or why there is none."""

    value: str = ""
    problem: str = ""


def ask_all(upstream: Upstream, watched: list[tuple[Deployment, Deployed]]) -> dict[str, Answer]:
    """Ask for all deployments at once, by name. Never raises for the network, never takes longer than the budget."""

    def answer(item: tuple[Deployment, Deployed]) -> Answer:
        try:
            return Answer(value=upstream.ask(*item))
        except SparkPipelineError as error:
            return Answer(problem=": ".join(part for part in (error.what, error.observed) if part))

    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="upstream")
    futures = {item[0].name: pool.submit(answer, item) for item in watched}
    done, _ = wait(futures.values(), timeout=TICK_BUDGET_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    late = Answer(problem=f"no answer within {TICK_BUDGET_SECONDS:g} s")
    return {name: future.result() if future in done else late for name, future in futures.items()}
