"""Which image was decided on, and how it is used: written by compatibility_report, followed by vllm_image."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from spark_pipeline.errors import StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.augment.augmentation import Augmentation
from spark_pipeline.image.strategy import Way
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.deployment import Deployment


class ImageChoice(Record):
    """One candidate, and the way it is used.

    Args:
        declared: the candidate, as declared.
        digest: of the registry's manifest; None for an image that no registry was asked about.
        fingerprint: of the candidate as the head holds it.
        augmentation: what is built onto it; None: it is used as it is.
        commit: of the model that it was decided for.
        architecture, model_type: what the image that comes out must be able to serve.
        reason: why this one, in one sentence.
        decided_for: hash of what was declared then (`declaration_hash`).
    """

    declared: str
    digest: str | None
    fingerprint: str
    way: Way
    augmentation: Augmentation | None
    commit: str
    architecture: str
    model_type: str
    reason: str
    decided_for: str
    run_id: str


def declaration_hash(deployment: Deployment) -> str:
    """Changes when the decision may be another: with model, candidates, backend or layout."""
    parts = (deployment.model, deployment.image, deployment.parallel)
    text = "\n".join([*(part.model_dump_json() for part in parts), str(deployment.backend)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def keep_choice(session: Session, choice: ImageChoice) -> None:
    store.write(session.state_dir / "choice.json", choice)


def forget_choice(session: Session, commit: str) -> None:
    """What was decided for this commit of the model holds no longer; a decision for another one stays."""
    path = session.state_dir / "choice.json"
    with suppress(StateError):  # one that cannot be read is followed by nobody
        choice = store.read(path, ImageChoice)
        if choice is not None and choice.commit == commit:
            path.unlink(missing_ok=True)


def read_choice(session: Session) -> ImageChoice:
    """The decision for what is declared now.

    Raises:
        StateError: nothing was decided yet, or something else was declared then.
    """
    name = session.deployment.name
    path = session.state_dir / "choice.json"
    choice = store.read(path, ImageChoice)
    remedy = f"materialize {name}/compatibility_report first"
    if choice is None:
        raise StateError(f"no image was decided on for {name}", observed=f"{path} does not exist", remedy=remedy)
    if choice.decided_for != declaration_hash(session.deployment):
        raise StateError(
            f"the image was decided on for another declaration of {name}",
            observed=f"model, image, parallel or backend changed since run {choice.run_id}",
            remedy=remedy,
        )
    return choice
