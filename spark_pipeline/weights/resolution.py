"""One run, one commit: what a branch meant when a run first asked is what it means until that run ends."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from spark_pipeline.fleet.session import Session
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.weights.manifest import Manifest, keep_manifest
from spark_pipeline.weights.revision import resolve

# Runs that may be under way at once on one deployment, with room to spare: none may lose its commit to another.
_KEPT = 16


class Resolution(BaseModel):
    """What `revision`, as declared or asked for, meant to one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    revision: str
    commit: str
    run_id: str


class Resolutions(Record):
    """Those of the last runs, oldest first."""

    resolutions: tuple[Resolution, ...] = ()


def resolve_for_run(session: Session, revision: str | None = None) -> Manifest:
    """The files of `revision`, the same in every step of a run, although the branch moves in between. The first call
    of a run asks the hub and stores the manifest; the others need neither.

    Args:
        revision: default: the declared one.

    Raises:
        RevisionNotFoundError: the hub has no such repository or revision.
        HubError: the hub refuses, or cannot be reached.
        WeightsError: the repository's files cannot be a model's, or would leave its directory.
        StateError: the record of resolutions cannot be read.
    """
    model = session.deployment.model
    wanted = revision or model.revision
    path = resolution_path(session)
    stored = store.read(path, Resolutions) or Resolutions()

    def is_ours(one: Resolution) -> bool:
        return (one.run_id, one.repo, one.revision) == (session.run_id, model.repo, wanted)

    known = next((one for one in stored.resolutions if is_ours(one)), None)
    # Where another run has stored another manifest since, the hub is asked once more, but for the commit itself.
    manifest = resolve(model, known.commit if known else wanted, session.state_dir)
    keep_manifest(session.state_dir, manifest)
    if known is None:
        ours = Resolution(repo=model.repo, revision=wanted, commit=manifest.commit, run_id=session.run_id)
        store.write(path, Resolutions(resolutions=(*stored.resolutions, ours)[-_KEPT:]))
    return manifest


def resolution_path(session: Session) -> Path:
    return session.state_dir / "resolution.json"
