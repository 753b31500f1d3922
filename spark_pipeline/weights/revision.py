"""Asking the hub, once per run: which commit is meant, and what belongs to it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from spark_pipeline.errors import HubError, RevisionNotFoundError, WeightsError
from spark_pipeline.spec.deployment import Model
from spark_pipeline.weights.hub import TIMEOUT_SECONDS, Hub, explained
from spark_pipeline.weights.manifest import Manifest, ManifestFile, read_manifest, refuse_empty

# From here on the hub may cut the list of files (huggingface_hub, VERY_LARGE_REPO_THRESHOLD).
MAX_FILES = 50_000

_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def resolve(model: Model, revision: str, state_dir: Path) -> Manifest:
    """The files of `revision`. A commit whose manifest is stored needs no hub at all.

    Raises:
        RevisionNotFoundError: the hub has no such repository or revision.
        HubError: the hub refuses, or cannot be reached.
        WeightsError: the repository's files cannot be a model's, or would leave its directory.
    """
    stored = read_manifest(state_dir)
    if stored and stored.repo == model.repo and stored.commit == revision:
        return stored
    try:
        return ask(Hub.of(model), model.repo, revision)
    except RevisionNotFoundError:
        raise
    except HubError as error:
        if stored and stored.repo == model.repo:
            error.remedy += f"\nor, to go on with what was resolved last, declare revision: {stored.commit}"
        raise


def ask(hub: Hub, repo: str, revision: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Manifest:
    """One call: the commit and its files come in the same answer, so a branch that moves cannot mix two of them."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="spark_pipeline")
    with explained(hub, repo, revision, refusal=f"does not tell what {repo} holds"):
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout_seconds)
    return _manifest(repo, info.sha or "", info.siblings or [])


def _manifest(repo: str, commit: str, siblings: list) -> Manifest:
    if not is_commit(commit) or len(siblings) >= MAX_FILES:
        raise HubError(
            f"the hub's answer about {repo} is of no use", observed=f"commit {commit!r}, {len(siblings)} files"
        )
    try:
        files = [
            ManifestFile(path=one.rfilename, size_bytes=one.size, sha256=one.lfs.sha256)
            if one.lfs
            else ManifestFile(path=one.rfilename, size_bytes=one.size, git_sha1=one.blob_id)
            for one in siblings
        ]
    except ValidationError as error:
        raise WeightsError(
            f"{repo} is not taken as it is",
            observed="; ".join(problem["msg"] for problem in error.errors()),
            remedy="a repository with such files cannot be trusted; look at it on the hub",
        ) from None
    manifest = Manifest(repo=repo, commit=commit, files=tuple(sorted(files, key=lambda file: file.path)))
    refuse_empty(manifest)
    return manifest
