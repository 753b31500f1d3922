"""The stage `compatibility_report`: cheap questions first, and the way that works, before weights or nodes are touched.

Six failures in a row of the case behind this project (one node too small, an entrypoint of another image, model files
that no registry names, requirements that exclude each other, classes that do not import) are answers here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from spark_pipeline.cluster import containers
from spark_pipeline.cluster.memory import Demand, Layout, layouts, more_room
from spark_pipeline.cluster.plan import refuse_shared_accelerator
from spark_pipeline.compatibility import describe
from spark_pipeline.compatibility.judge import Asked, ask_all
from spark_pipeline.compatibility.record import (
    CompatibilityReport,
    candidate_facts,
    report_path,
)
from spark_pipeline.errors import AugmentError, CompatibilityError
from spark_pipeline.fleet import facts as node_facts
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Augmentation
from spark_pipeline.image.augment.plan import plan_graft, plan_ray
from spark_pipeline.image.candidates import Pin, machines
from spark_pipeline.image.choice import ImageChoice, declaration_hash, forget_choice, keep_choice
from spark_pipeline.image.strategy import BUILT, Option, Way, chosen, options, without
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec import store
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.kv_cache import kv_cache_bytes_per_token
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.model_facts import ModelFacts, model_facts
from spark_pipeline.weights.resolution import resolve_for_run
from spark_pipeline.weights.revision import resolve


@dataclass(frozen=True)
class CompatibilityResult:
    """What was found. `plan.changes`: an image must still be pulled before everything is known."""

    report: CompatibilityReport
    choice: ImageChoice | None
    plan: StagePlan
    seconds: float = 0.0


def plan(session: Session) -> CompatibilityResult:
    """What is known now. Runs an image's probe in a container that goes at once, pulls nothing, changes nothing.

    Raises:
        HubError, WeightsError, RegistryError, MachineError: see `ensure`.
    """
    declared = session.deployment.model
    return _look(session, resolve(declared, declared.revision, session.state_dir), None, may_pull=False)


def ensure(
    session: Session, *, revision: str | None = None, digest: str | None = None, image: str | None = None
) -> CompatibilityResult:
    """Ask hub, registries, nodes and images; decide; write both down.

    Args:
        revision, digest: what a sensor saw, to be judged instead of what is declared.
        image: the candidate that the digest is of; default: whichever has it.

    Raises:
        CompatibilityError: no candidate can serve the model here, with every way and what rules it out.
        ClusterError: another deployment holds the nodes' accelerators.
        HubError, WeightsError: the model cannot be asked, or is none that vLLM could generate text with.
        RegistryError, ImageError: a preferred candidate's registry or the image gave no answer, or it cannot be pulled.
        MachineError: a node could not be asked.
    """
    manifest = resolve_for_run(session, revision)
    # When this fails (hub or registry are down), what was decided before still holds: for the same commit of the model
    # only, see cluster/stage.target.
    result = _look(session, manifest, Pin(digest, image) if digest else None, may_pull=True)
    for line in (*(layout.text() for layout in result.report.layouts), *map(describe.of_option, result.report.options)):
        session.progress(line)
    store.write(report_path(session), result.report)
    if result.choice is None:
        if digest is None:  # "no" to what a sensor saw says nothing of what serves now
            forget_choice(session, manifest.commit)
        raise CompatibilityError(
            f"{session.deployment.name} cannot be served as declared: {result.report.problem}",
            observed=describe.table(result.report),
            remedy=result.report.remedy,
        )
    keep_choice(session, result.choice)
    return result


def _look(session: Session, manifest: Manifest, pin: Pin | None, *, may_pull: bool) -> CompatibilityResult:
    started = time.monotonic()
    declared = session.deployment.model
    model = model_facts(Hub.of(declared), manifest, session.project, session.progress)
    session.progress(describe.of_model(model))
    nodes, occupied = _memory(session)
    # A model that does not fit is no reason to pull 30 GB; what is there already is asked all the same.
    fits = _declared(session, layouts(nodes, demand_of(session, model, occupied=occupied))).fits
    asked = ask_all(session, pin, wanted_of(model), machines(session), may_pull=may_pull and fits)
    result = decide(session, model, nodes, asked, occupied=occupied)
    return replace(result, seconds=time.monotonic() - started)


def decide(
    session: Session, model: ModelFacts, nodes: Sequence[NodeFacts], asked: Sequence[Asked], *, occupied: bool
) -> CompatibilityResult:
    """From what was seen to the decision. Asks nobody, but the package index where Ray must be layered on.

    Args:
        nodes: of the deployment, in rank order.
        occupied: containers of this deployment hold memory that will be free when it starts anew.
    """
    wanted = wanted_of(model)
    demand = demand_of(session, model, occupied=occupied)
    fits = layouts(nodes, demand)
    found = options(session.deployment, [item.judged for item in asked], wanted)
    found, augmentation = _buildable(session, asked, found, wanted)
    option = chosen(found)
    problem, remedy = "", ""
    if not _declared(session, fits).fits:
        problem, remedy = "the model does not fit into the nodes' memory", more_room(nodes, demand)
    elif option is None:
        problem = "no candidate image can serve the model"
        remedy = describe.remedy([item.judged for item in asked], found)
    report = CompatibilityReport(
        deployment=session.deployment.name,
        model=model,
        layouts=fits,
        fits=_declared(session, fits).fits,
        candidates=tuple(candidate_facts(item.candidate, item.judged) for item in asked),
        options=found,
        problem=problem,
        remedy=remedy,
        run_id=session.run_id,
        made_at=datetime.now(UTC),
    )
    choice = _choice(session, asked, option, augmentation, model) if option is not None and not problem else None
    return CompatibilityResult(report, choice, describe.plan(report, pulls=any(item.to_pull for item in asked)))


def demand_of(session: Session, model: ModelFacts, *, occupied: bool) -> Demand:
    """What the model, served as declared, asks of the nodes' memory."""
    serve = session.deployment.serve
    tokens = serve.max_model_len or model.context_tokens or 0
    # `--kv-cache-dtype fp8`, or fp8_e4m3, halves it.
    small = any(word.startswith("fp8") and before == "--kv-cache-dtype" for before, word in pairwise(serve.args))
    share = serve.gpu_memory_utilization

    def cache_bytes(ranks: int) -> int:
        return (kv_cache_bytes_per_token(model, ranks, element_bytes=1 if small else 2) or 0) * tokens

    return Demand(
        session.fleet.accelerator, model.size_bytes, cache_bytes, None if share == "auto" else share, occupied
    )


def wanted_of(model: ModelFacts) -> Wanted:
    """What an image is asked, in the image's own terms."""
    return Wanted(model.architectures, model.model_type, model.transformers_version, model.has_remote_code)


def _memory(session: Session) -> tuple[tuple[NodeFacts, ...], bool]:
    """The nodes' facts, and whether containers of this deployment hold memory there now.

    Raises:
        ClusterError: another deployment holds the accelerators.
    """
    running, others = containers.observe(session)
    refuse_shared_accelerator(session.fleet, others)
    weights_dir = session.fleet.weights_dir
    names = [node.name for node in session.nodes]
    seen = session.connection.each(names, lambda host: node_facts.observe(host, weights_dir))
    return tuple(seen.values()), running.holds_memory


def _declared(session: Session, fits: Sequence[Layout]) -> Layout:
    return next(layout for layout in fits if layout.nodes == len(session.nodes))


def _buildable(
    session: Session, asked: Sequence[Asked], found: tuple[Option, ...], wanted: Wanted
) -> tuple[tuple[Option, ...], Augmentation | None]:
    """What is built for the best way. One that cannot be built after all is ruled out, and the next best is taken."""
    while (option := chosen(found)) is not None and option.way in BUILT:
        try:
            return found, _augmentation(session, asked, option, wanted)
        except AugmentError as error:
            found = without(found, option, f"{error.what}: {error.observed}")
    return found, None


def _augmentation(session: Session, asked: Sequence[Asked], option: Option, wanted: Wanted) -> Augmentation:
    image, answer = _held(asked, option.candidate)
    if option.way is Way.RAY_LAYERED:
        return plan_ray(answer, image, option.candidate, option.why, session.project.wheels_dir, session.progress)
    assert option.donor is not None
    donor_image, donor_answer = _held(asked, option.donor)
    return plan_graft(
        answer,
        donor_answer,
        wanted.architectures[0],
        image,
        donor_image,
        option.candidate,
        option.donor,
        option.why,
    )


def _held(asked: Sequence[Asked], declared: str) -> tuple[ImageFacts, ImageAnswer]:
    """A candidate that answered; an option is possible for no other."""
    item = next(item for item in asked if item.declared == declared)
    assert item.candidate.on_head is not None
    assert item.judged.answer is not None
    return item.candidate.on_head, item.judged.answer


def _choice(
    session: Session, asked: Sequence[Asked], option: Option, augmentation: Augmentation | None, model: ModelFacts
) -> ImageChoice:
    item = next(item for item in asked if item.declared == option.candidate)
    image, _ = _held(asked, option.candidate)
    verdict = item.judged.verdict
    assert verdict is not None
    return ImageChoice(
        declared=option.candidate,
        digest=item.candidate.digest,
        fingerprint=image.fingerprint,
        way=option.way,
        augmentation=augmentation,
        commit=model.commit,
        architecture=verdict.architecture,
        model_type=model.model_type,
        reason=f"{option.candidate}, {option.way}: {option.why}",
        decided_for=declaration_hash(session.deployment),
        run_id=session.run_id,
    )
