"""The stage `compatibility_report`: cheap questions first, and the way that works, before weights or nodes are touched.

Six failures in a row of the case behind this project (one node too small, an entrypoint of another image, model files
that no registry names, requirements that exclude each other, classes that do not import) are answers here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from spark_pipeline.cluster import containers
from spark_pipeline.cluster.memory import Layout, layouts
from spark_pipeline.compatibility import describe
from spark_pipeline.compatibility.judge import Asked, ask_all
from spark_pipeline.compatibility.record import CandidateFacts, CompatibilityReport, LayoutFit, report_path
from spark_pipeline.errors import CompatibilityError
from spark_pipeline.fleet import facts as node_facts
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.augment.plan import plan_graft, plan_ray
from spark_pipeline.image.candidates import Candidate, fitting, machines
from spark_pipeline.image.choice import ImageChoice, declaration_hash, keep_choice
from spark_pipeline.image.strategy import Judged, Option, Way, chosen, options
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec import store
from spark_pipeline.spec.deployment import SECRET
from spark_pipeline.weights.hub import Hub
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


def ensure(session: Session, *, revision: str | None = None, digest: str | None = None) -> CompatibilityResult:
    """Ask hub, registries, nodes and images; decide; write both down.

    Args:
        revision, digest: what a sensor saw, to be judged instead of what is declared.

    Raises:
        CompatibilityError: no candidate can serve the model here, with every way and what rules it out.
        HubError, WeightsError: the model cannot be asked, or is none that vLLM could generate text with.
        RegistryError, ImageError: a preferred candidate's registry gave no answer, or it cannot be pulled.
        MachineError: a node could not be asked.
    """
    manifest = resolve_for_run(session, revision)
    result = _look(session, manifest, digest, may_pull=True)
    for line in (*(layout.text for layout in result.report.layouts), *map(describe.of_option, result.report.options)):
        session.progress(line)
    store.write(report_path(session), result.report)
    if result.choice is None:
        raise CompatibilityError(
            f"{session.deployment.name} cannot be served as declared: {result.report.problem}",
            observed=describe.table(result.report),
            remedy=describe.remedy(result.report),
        )
    keep_choice(session, result.choice)
    return result


def _look(session: Session, manifest: Manifest, digest: str | None, *, may_pull: bool) -> CompatibilityResult:
    started = time.monotonic()
    declared = session.deployment.model
    model = model_facts(Hub.of(declared), manifest, session.project, session.progress)
    session.progress(describe.of_model(model))
    asked = ask_all(session, fitting(session, digest), digest, wanted_of(model), machines(session), may_pull=may_pull)
    nodes, occupied = _memory(session)
    result = decide(session, model, nodes, asked, occupied=occupied)
    return replace(result, seconds=time.monotonic() - started)


def decide(
    session: Session, model: ModelFacts, nodes: Sequence[NodeFacts], asked: Sequence[Asked], *, occupied: bool
) -> CompatibilityResult:
    """From what was seen to the decision. Asks nobody, but the package index where Ray must be layered on.

    Args:
        nodes: of the deployment, in rank order.
        occupied: containers hold memory that will be free when this deployment starts.
    """
    wanted = wanted_of(model)
    fits = layouts(nodes, session.fleet.accelerator, model.size_bytes, occupied=occupied)
    found = options(session.deployment, [item.judged for item in asked], wanted)
    option = chosen(found)
    problem = _problem(session, fits, option)
    report = CompatibilityReport(
        deployment=session.deployment.name,
        model=model,
        layouts=tuple(_fit(layout) for layout in fits),
        declared_nodes=len(session.nodes),
        candidates=tuple(candidate_facts(item.candidate, item.judged) for item in asked),
        options=found,
        problem=problem,
        run_id=session.run_id,
        made_at=datetime.now(UTC),
    )
    pulls = any(item.to_pull for item in asked)
    choice = _choice(session, asked, option, wanted, model) if option is not None and not problem else None
    return CompatibilityResult(report, choice, describe.plan(report, pulls=pulls))


def wanted_of(model: ModelFacts) -> Wanted:
    """What an image is asked, in the image's own terms."""
    return Wanted(model.architectures, model.model_type, model.transformers_version, model.has_remote_code)


def _memory(session: Session) -> tuple[tuple[NodeFacts, ...], bool]:
    """The nodes' facts, and whether containers of ours hold memory there now."""
    running, others = containers.observe(session)
    weights_dir = session.fleet.weights_dir
    names = [node.name for node in session.nodes]
    seen = session.connection.each(names, lambda host: node_facts.observe(host, weights_dir))
    return tuple(seen.values()), bool(running.containers or others)


def _problem(session: Session, fits: Sequence[Layout], option: Option | None) -> str:
    """Why it cannot be served as declared; '' when it can."""
    nodes = len(session.nodes)
    declared = next((layout for layout in fits if layout.nodes == nodes), None)
    if declared is not None and not declared.fits:
        return "the model does not fit into the nodes' memory"
    return "" if option is not None else "no candidate image can serve the model"


def _choice(session: Session, asked: Sequence[Asked], option: Option, wanted: Wanted, model: ModelFacts) -> ImageChoice:
    by_name = {item.candidate.declared: item for item in asked}
    item = by_name[option.candidate]
    image, judged = item.candidate.on_head, item.judged
    assert image is not None  # an option is possible only for an image that answered
    assert judged.answer is not None
    assert judged.verdict is not None
    augmentation = None
    if option.way is Way.RAY_LAYERED:
        augmentation = plan_ray(
            judged.answer, image, option.candidate, option.why, session.project.wheels_dir, session.progress
        )
    elif option.way is Way.GRAFT:
        donor = by_name[option.donor or ""]
        donor_image, donor_answer = donor.candidate.on_head, donor.judged.answer
        assert donor_image is not None
        assert donor_answer is not None
        augmentation = plan_graft(
            judged.answer,
            donor_answer,
            wanted.architectures[0],
            image,
            donor_image,
            option.candidate,
            option.donor or "",
            option.why,
        )
    return ImageChoice(
        declared=option.candidate,
        digest=item.candidate.digest,
        fingerprint=image.fingerprint,
        way=option.way,
        augmentation=augmentation,
        architecture=judged.verdict.architecture,
        model_type=model.model_type,
        reason=f"{option.candidate}, {option.way}: {option.why}",
        decided_for=declaration_hash(session.deployment),
        run_id=session.run_id,
    )


def _fit(layout: Layout) -> LayoutFit:
    return LayoutFit(
        nodes=layout.nodes,
        needs_bytes=layout.needs_bytes,
        has_bytes=layout.has_bytes,
        node=layout.node,
        fits=layout.fits,
        text=layout.text(),
    )


def candidate_facts(candidate: Candidate, judged: Judged) -> CandidateFacts:
    """One candidate as it is reported."""
    found = CandidateFacts(declared=candidate.declared, digest=candidate.digest, against=judged.against or judged.waits)
    if (image := candidate.on_head) is not None:
        found = found.model_copy(
            update={
                "fingerprint": image.fingerprint,
                "platform": f"{image.os}/{image.architecture}",
                "size_bytes": image.size_bytes,
                "entrypoint": image.entrypoint,
                "command": image.command,
                "working_dir": image.working_dir,
                "user": image.user,
                "environment": {
                    key: "***" if SECRET.search(key) else value for key, value in image.environment.items()
                },
            }
        )
    if (answer := judged.answer) is not None:
        found = found.model_copy(
            update={
                "engine": answer.engine,
                "installed_as": answer.installed_as,
                "directory": answer.directory,
                "verdict": judged.verdict,
            }
        )
    return found
