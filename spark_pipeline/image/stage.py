"""The stage `vllm_image`: one image, the same on every node by proof, and what engine is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_pipeline.errors import CommandFailedError, ImageDiffersError, ImageError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.progress import heartbeat
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.choose import Choice, pinned
from spark_pipeline.image.distribute import Parcel, Sent, distribute
from spark_pipeline.image.facts import probe
from spark_pipeline.image.observe import candidates, decide, look_and_choose, same
from spark_pipeline.image.plan import ImagePlan, describe, names_of, own_tag, pull_commands
from spark_pipeline.image.record import ImageRecord
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.transfer import refuse_without_room, refuse_without_room_to_read, room_on
from spark_pipeline.spec import store

_ASK_SECONDS = 60
# 30 GB over a home's 50 Mbit/s take 80 minutes.
_PULL_SECONDS = 4 * 3600


@dataclass(frozen=True)
class NodeImage:
    """How one node came to hold the image.

    Args:
        already_there: nothing was pulled or sent (a name may have been put on it).
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
    """What `ensure` did. `changed`: something was pulled, sent or named anew on a node."""

    record: ImageRecord
    changed: bool
    plan: StagePlan
    nodes: tuple[NodeImage, ...]


def plan(session: Session, reference: str | None = None, *, digest: str | None = None) -> StagePlan:
    """What `ensure` would do. Changes nothing.

    Args:
        reference: this candidate only; default: all that are declared, in order.
        digest: see `ensure`.
    """
    choice = look_and_choose(session, candidates(session, digest, reference), digest)
    return _describe(session, decide(session, choice))


def ensure(session: Session, *, digest: str | None = None) -> ImageResult:
    """Bring the image to every node of the deployment, and prove that it is the same there.

    Without `digest`, an image that the head holds under a candidate's name is taken as it is, and no registry is
    asked. With it, the image is `candidate@digest`: what the image sensor saw is what gets deployed, even if the tag
    moves again in between.

    Raises:
        ImageNotFoundError: no candidate is on the head or in a registry.
        RegistryError: a candidate's registry gave no answer, and no candidate before it is on the head.
        ImageError: it cannot run here, has no vLLM, does not fit, or cannot be copied.
        ImageDiffersError: two nodes hold different images under the pipeline's name.
        MachineError: a node could not be asked.
    """
    declared = candidates(session, digest)
    choice = look_and_choose(session, declared, digest)
    pulled = choice.pull is not None
    for _ in declared:  # each round puts one more candidate on the head; one that cannot run there is passed over
        if choice.pull is None:
            break
        _pull(session, choice)
        choice = look_and_choose(session, declared, digest)
    image = choice.on_head
    if image is None:
        raise ImageError(
            f"{choice.pull} was pulled, and is not there",
            node=session.head.name,
            observed=f"docker image inspect {pinned(choice.declared, digest)}: no such image",
            remedy=f"docker pull {choice.pull} on that node, then docker image ls --digests",
        )
    engine = probe(session.head, image, session.project, session.progress).answer.engine
    planned = decide(session, choice)
    sent = _apply(session, planned, image)
    if planned.changes:  # otherwise the look at every node a moment ago was the proof
        _verify(session, image)
    record = ImageRecord(
        reference=own_tag(image.fingerprint),
        declared=choice.declared,
        digest=choice.digest,
        fingerprint=image.fingerprint,
        size_bytes=image.size_bytes,
        engine=engine,
        run_id=session.run_id,
        verified_at=datetime.now(UTC),
    )
    store.write(session.state_dir / "image.json", record)
    changed = pulled or planned.changes
    if not changed:
        session.progress(f"{choice.declared} is on every node already: nothing was copied")
    return ImageResult(record, changed, _describe(session, planned), _nodes(session, sent, pulled=pulled))


def _describe(session: Session, planned: ImagePlan) -> StagePlan:
    return describe(planned, session.fleet.head.name, _ways(session))


def _ways(session: Session) -> dict[str, tuple[str, ...]]:
    return {node.name: fabric_ssh(session.fleet, node) for node in session.nodes if node != session.fleet.head}


def _pull(session: Session, choice: Choice) -> None:
    pull, *tags = pull_commands(choice)
    what = f"pulling {choice.declared} on {session.head.name}"
    layers = 0

    def on_line(line: str) -> None:
        nonlocal layers
        if line.endswith(": Pull complete"):
            layers += 1
            session.progress(f"{what}: {layers} layers are there")

    with heartbeat(what, session.progress):
        try:
            session.head.stream(pull, on_line=on_line, timeout=_PULL_SECONDS)
        except CommandFailedError as error:
            raise _not_pulled(choice, pull, error) from error
    for tag in tags:
        session.head.run(tag, timeout=_ASK_SECONDS)


def _not_pulled(choice: Choice, pull: Sequence[str], error: CommandFailedError) -> ImageError:
    if "server gave HTTP response to HTTPS client" in error.observed:
        registry = Reference.parse(choice.declared).registry
        remedy = f'add "{registry}" to insecure-registries in /etc/docker/daemon.json there, or give it TLS'
    elif "no space left on device" in error.observed:
        remedy = "docker image prune there, or give Docker a larger disk"
    else:
        remedy = f"run it there to see it fail: {' '.join(pull)}; a private image needs docker login there"
    return ImageError(f"{choice.pull} could not be pulled", node=error.node, observed=error.observed, remedy=remedy)


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


def _nodes(session: Session, sent: Sequence[Sent], *, pulled: bool) -> tuple[NodeImage, ...]:
    came = {item.node: item for item in sent}
    return tuple(
        NodeImage(node.name, False, came[node.name].sent_bytes, came[node.name].full_bytes, came[node.name].seconds)
        if node.name in came
        else NodeImage(node.name, already_there=not (pulled and node == session.fleet.head))
        for node in session.nodes
    )
