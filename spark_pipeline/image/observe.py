"""What the nodes hold of the image that was decided on: changes nothing."""

from __future__ import annotations

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import facts
from spark_pipeline.image.candidates import pinned
from spark_pipeline.image.choice import ImageChoice
from spark_pipeline.image.plan import Holding, ImagePlan, names_of, own_tag
from spark_pipeline.image.transfer import history_sizes, layers_on, transfer


def base_on_head(session: Session, choice: ImageChoice) -> ImageFacts:
    """The candidate that was decided on, as the head holds it now.

    Raises:
        ImageError: it is not there any more, or its name stands for another image.
    """
    return held(session, pinned(choice.declared, choice.digest), choice.fingerprint)


def held(session: Session, name: str, fingerprint: str) -> ImageFacts:
    """The image of this fingerprint, under its name or the pipeline's own.

    Raises:
        ImageError: see `base_on_head`.
    """
    docker = Docker(session.head)
    names = (name, own_tag(fingerprint))
    for known in names:
        image = docker.image(known)
        if image is not None and image.fingerprint == fingerprint:
            return image
    raise ImageError(
        f"{name} is not the image any more that compatibility_report decided on",
        node=session.head.name,
        observed=f"nothing with fingerprint {fingerprint[:16]} under {' or '.join(names)}",
        remedy=f"materialize {session.deployment.name}/compatibility_report again",
    )


def decide(session: Session, choice: ImageChoice, image: ImageFacts | None) -> ImagePlan:
    """What every node holds of the image, and so what is to be done; None for an image that must still be built."""
    if image is None:
        return ImagePlan(choice, None, (), None)
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
    return ImagePlan(choice, image, tuple(holdings.values()), known.answer.engine if known else None)


def same(found: ImageFacts | None, image: ImageFacts) -> bool:
    """Whether what a node has under some name is this image."""
    return found is not None and found.fingerprint == image.fingerprint
