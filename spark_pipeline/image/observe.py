"""What the nodes and the registries say: changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from spark_pipeline.errors import ImageNotFoundError, RegistryError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import facts
from spark_pipeline.image.choose import Candidate, Choice, Machine, RegistryAnswer, choose, pinned, unfit
from spark_pipeline.image.plan import Holding, ImagePlan, names_of
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.registry import remote_digest
from spark_pipeline.image.registry_client import NotAllowedError
from spark_pipeline.image.transfer import history_sizes, layers_on, transfer

_ASK_SECONDS = 60


def candidates(session: Session, digest: str | None, reference: str | None = None) -> tuple[str, ...]:
    """The references to consider, in order. One that is declared by another digest cannot be the one asked for.

    Raises:
        ImageNotFoundError: none is left.
    """
    declared = (reference,) if reference else session.deployment.image.candidates
    fitting = tuple(item for item in declared if digest is None or Reference.parse(item).digest in (None, digest))
    if not fitting:
        raise ImageNotFoundError(
            f"no candidate can be at {digest}",
            observed=f"declared by digest: {', '.join(declared)}",
            remedy="declare the new digest under image.candidates, or declare by tag",
        )
    return fitting


def look_and_choose(session: Session, declared: Sequence[str], digest: str | None) -> Choice:
    """Ask the head for every candidate, the registries only for those before the first one that it holds.

    Raises:
        ImageNotFoundError, ImageError: see `choose`.
        RegistryError: a registry that had to be asked could not say whether it has the image.
    """
    head = session.fleet.head.name

    def look(host: Host) -> tuple[Machine, tuple[ImageFacts | None, ...]]:
        machine = Machine(host.name, host.run(["uname", "-m"], timeout=_ASK_SECONDS).stdout.strip())
        wanted = [pinned(item, digest) for item in declared] if host.name == head else []
        return machine, tuple(Docker(host).image(item) for item in wanted)

    seen = session.connection.each([node.name for node in session.nodes], look)
    machines = tuple(machine for machine, _ in seen.values())
    known: list[Candidate] = []
    found = False
    for item, on_head in zip(declared, seen[head][1], strict=True):
        asked = None if found or on_head is not None else _ask_registry(pinned(item, digest))
        found = found or (on_head is not None and not unfit(on_head, machines))
        found = found or (asked is not None and asked.digest is not None)
        known.append(Candidate(item, on_head, asked))
    return choose(known, machines, digest)


def decide(session: Session, choice: Choice) -> ImagePlan:
    """What every node holds of the chosen image, and so what is to be done."""
    image = choice.on_head
    if image is None:
        return ImagePlan(choice, (), None)
    names = names_of(choice, image)

    def look(host: Host) -> Holding:
        docker = Docker(host)
        known = {name: same(docker.image(name), image) for name in names}
        unnamed = tuple(name for name in names if not known[name])
        source = next((name for name in names if known[name]), None)
        # An engine with the same kind of image store may know it by id alone: as a leftover, or under another name.
        if source is None and same(docker.image(image.image_id), image):
            source = image.image_id
        if source is not None:
            return Holding(host.name, source, unnamed)
        history = history_sizes(session.head, image.image_id)
        return Holding(host.name, None, unnamed, transfer(host.name, image, history, layers_on(host)))

    holdings = session.connection.each([node.name for node in session.nodes], look)
    known = facts.cached(session.project, image.fingerprint)
    return ImagePlan(choice, tuple(holdings.values()), known.answer.engine if known else None)


def same(found: ImageFacts | None, image: ImageFacts) -> bool:
    """Whether what a node has under some name is this image."""
    return found is not None and found.fingerprint == image.fingerprint


def _ask_registry(reference: str) -> RegistryAnswer:
    """A no passes on to the next candidate. No answer does not: what is declared first would be replaced by another
    image, for a fault that passes."""
    try:
        return RegistryAnswer(remote_digest(reference))
    except (ImageNotFoundError, NotAllowedError) as error:
        return RegistryAnswer(None, f"{error.what} ({error.observed})")
    except RegistryError as error:
        raise RegistryError(
            f"whether candidate {reference} exists cannot be told now: {error.what}",
            observed=error.observed,
            remedy=f"{error.remedy}\nto do without it, take it out of image.candidates, or put another one first",
        ) from error
