"""Decisions as compatibility_report writes them, for tests of what comes after it."""

from __future__ import annotations

from spark_pipeline.errors import ImageNotFoundError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.augment.augmentation import Augmentation
from spark_pipeline.image.candidates import Pin, ask_registry, look, machines, pull, wanted_candidates
from spark_pipeline.image.choice import ImageChoice, declaration_hash, keep_choice
from spark_pipeline.image.strategy import Way


def choice_of(
    session: Session,
    declared: str,
    image: ImageFacts,
    *,
    digest: str | None = None,
    augmentation: Augmentation | None = None,
) -> ImageChoice:
    return ImageChoice(
        declared=declared,
        digest=digest,
        fingerprint=image.fingerprint,
        way=Way.RAY_LAYERED if augmentation else Way.OWN_RAY,
        augmentation=augmentation,
        commit="c" * 40,
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        reason="decided by a test",
        decided_for=declaration_hash(session.deployment),
        run_id=session.run_id,
    )


def decide_on_first(session: Session, digest: str | None = None) -> None:
    """Take the first declared candidate as it is, pulled if the head does not hold it, whatever is in it."""
    nodes = machines(session)
    pin = Pin(digest) if digest else None
    (candidate, *_) = look(session, wanted_candidates(session, pin)[:1], nodes)
    image = candidate.on_head
    if image is None:
        candidate = ask_registry(candidate, nodes)
        if candidate.against:
            raise ImageNotFoundError(candidate.against)
        image = pull(session, candidate)
    keep_choice(session, choice_of(session, candidate.declared, image, digest=candidate.digest))
