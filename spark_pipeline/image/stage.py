"""The stage `vllm_image`: one image, the same on every node by proof, and what engine is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_pipeline.errors import (
    ALSO,
    ImageDiffersError,
    ImageError,
    ImageSilentError,
    SparkPipelineError,
    StateError,
)
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.augment import build as builder
from spark_pipeline.image.augment.augmentation import AugmentKind
from spark_pipeline.image.choice import ImageChoice, read_choice
from spark_pipeline.image.distribute import Parcel, Sent, distribute
from spark_pipeline.image.facts import probe
from spark_pipeline.image.observe import base_on_head, decide, held, same
from spark_pipeline.image.plan import ImagePlan, describe, names_of, own_tag
from spark_pipeline.image.record import EngineFacts, ImageRecord
from spark_pipeline.image.transfer import refuse_without_room, refuse_without_room_to_read, room_on
from spark_pipeline.image.verdict import Evidence, Wanted, judge
from spark_pipeline.spec import store

_ASK_SECONDS = 60


@dataclass(frozen=True)
class NodeImage:
    """How one node came to hold the image.

    Args:
        already_there: nothing was built or sent (a name may have been put on it).
        sent_bytes: from the head to it; 0 for the head itself.
        full_bytes: what a whole `docker save` of it is; 0 where nothing was sent.
        seconds: for that.
    """

    node: str
    already_there: bool
    sent_bytes: int = 0
    full_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ImageResult:
    """What `ensure` did. `changed`: something was built, sent or named anew on a node."""

    record: ImageRecord
    changed: bool
    plan: StagePlan
    nodes: tuple[NodeImage, ...]


def plan(session: Session, choice: ImageChoice) -> StagePlan:
    """What `ensure` would do with this decision. Changes nothing."""
    base = base_on_head(session, choice)
    image = base if choice.augmentation is None else builder.find(session.head, choice.augmentation)
    return _describe(session, decide(session, choice, image))


def ensure(session: Session, *, digest: str | None = None) -> ImageResult:
    """Bring the image that compatibility_report decided on to every node, and prove that it is the same there.

    Where something is layered on, it is built on the head, and asked again there, its own vLLM's inspection of the
    model's class included, before it goes to any other node.

    Args:
        digest: what the image sensor saw behind a tag; the decision must be for it.

    Raises:
        StateError: nothing was decided yet, or for something else.
        ImageError: the image is gone, cannot be built, cannot serve when built, does not fit, or cannot be copied.
        ImageDiffersError: two nodes hold different images under the pipeline's name.
        MachineError: a node could not be asked.
    """
    choice = read_choice(session)
    if digest is not None and choice.digest != digest:
        raise StateError(
            f"the image was decided on at {choice.digest or 'no digest'}, not at {digest}",
            remedy=f"materialize {session.deployment.name}/compatibility_report with the same digest first",
        )
    base = base_on_head(session, choice)
    is_built, image = (False, base) if choice.augmentation is None else _built(session, choice, base)
    engine = probe(session.head, image, session.project, session.progress).answer.engine
    planned = decide(session, choice, image)
    sent = _apply(session, planned, image)
    if planned.changes:  # otherwise the look at every node a moment ago was the proof
        _verify(session, image)
    record = image_record(session, choice, image, engine)
    store.write(session.state_dir / "image.json", record)
    changed = is_built or planned.changes
    if not changed:
        session.progress(f"{choice.declared} is on every node already: nothing was copied")
    return ImageResult(record, changed, _describe(session, planned), _nodes(session, sent, built=is_built))


def image_record(session: Session, choice: ImageChoice, image: ImageFacts, engine: EngineFacts) -> ImageRecord:
    """What later stages read, for an image that every node holds."""
    return ImageRecord(
        reference=own_tag(image.fingerprint),
        declared=choice.declared,
        digest=choice.digest,
        fingerprint=image.fingerprint,
        size_bytes=image.size_bytes,
        engine=engine,
        run_id=session.run_id,
        verified_at=datetime.now(UTC),
    )


def _built(session: Session, choice: ImageChoice, base: ImageFacts) -> tuple[bool, ImageFacts]:
    """The image with what is layered on; whether it was built now.

    Raises:
        ImageError: it cannot be built, or its vLLM cannot use the model's class; it is removed then.
    """
    augmentation = choice.augmentation
    assert augmentation is not None
    found = builder.find(session.head, augmentation)
    image = found
    if image is None:
        donor = (
            held(session, augmentation.donor.declared, augmentation.donor.fingerprint) if augmentation.donor else None
        )
        session.guard()
        image = builder.build(
            session.head, base, augmentation, session.project.wheels_dir, session.progress, donor=donor
        )
    wanted = Wanted((choice.architecture,), choice.model_type)
    try:
        result = probe(session.head, image, session.project, session.progress, wanted)
        verdict = judge(result.answer, result.inspections, wanted)
        # A graft must have been looked at: a name in a registry proves nothing (scenario, mistake 6).
        is_looked_at = verdict.evidence is Evidence.INSPECTED or augmentation.kind is not AugmentKind.GRAFT
        if not (verdict.serves and is_looked_at):
            raise ImageError(
                f"{augmentation.tag} was built and cannot serve {choice.architecture}: it goes nowhere",
                node=session.head.name,
                observed=verdict.error or verdict.why,
                remedy="take the graft out of the declaration, and use an image whose own vLLM knows the architecture",
            )
    except ImageSilentError:
        raise  # says nothing about the image: the next run asks it again
    except ImageError as error:
        _discard(session, augmentation.tag, error)
        raise
    return found is None, image


def _discard(session: Session, tag: str, error: ImageError) -> None:
    """Remove what was built and cannot serve; that this failed too must not hide why."""
    try:
        builder.discard(session.head, tag)
    except SparkPipelineError as also:
        error.add_note(f"{ALSO}{also}")


def _describe(session: Session, planned: ImagePlan) -> StagePlan:
    return describe(planned, session.fleet.head.name, _ways(session))


def _ways(session: Session) -> dict[str, tuple[str, ...]]:
    return {node.name: fabric_ssh(session.fleet, node) for node in session.nodes if node != session.fleet.head}


def _apply(session: Session, planned: ImagePlan, image: ImageFacts) -> tuple[Sent, ...]:
    for node, source, name in planned.retags:
        session.connection.host(node).run(["docker", "tag", source, name], timeout=_ASK_SECONDS)
    transfers = planned.transfers
    if not transfers:
        return ()
    head = session.fleet.head.name
    rooms = session.connection.each([head, *(wanted.node for wanted in transfers)], room_on)
    refuse_without_room_to_read(image, head, rooms[head])
    refuse_without_room(image, transfers, rooms)
    targets = [session.fleet.node(wanted.node) for wanted in transfers]
    prepare_fabric(session.connection, session.fleet, session.project.known_hosts, targets)
    names = names_of(planned.choice, image)
    parcel = Parcel(
        head=session.head,
        image=image,
        references=names,
        ways=_ways(session),
        arrived=lambda node: Docker(session.connection.host(node)).image(names[0]),
    )
    return distribute(parcel, transfers, session.progress)


def _verify(session: Session, image: ImageFacts) -> None:
    """Ask every node once more: this is the proof that goes into the record."""
    name = own_tag(image.fingerprint)
    held = session.connection.each([node.name for node in session.nodes], lambda host: Docker(host).image(name))
    for node, found in held.items():
        if not same(found, image):
            raise ImageDiffersError(
                "this node does not hold the image that the head holds",
                node=node,
                observed=f"{name}: {found.fingerprint if found else 'no such image'}, expected {image.fingerprint}",
                remedy="did somebody remove or tag images by hand? Run the same again",
            )


def _nodes(session: Session, sent: Sequence[Sent], *, built: bool) -> tuple[NodeImage, ...]:
    came = {item.node: item for item in sent}
    return tuple(
        NodeImage(node.name, False, came[node.name].sent_bytes, came[node.name].full_bytes, came[node.name].seconds)
        if node.name in came
        else NodeImage(node.name, already_there=not (built and node == session.fleet.head))
        for node in session.nodes
    )
