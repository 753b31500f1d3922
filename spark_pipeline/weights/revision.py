"""Asking the hub, once per run: which commit is meant, and what belongs to it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

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
    """One call: the commit and its files come in the same answer, so a branch that moves cannot mix two of them.

    Why not huggingface_hub's model_info, which asks the same: an answer with a gap, or of somebody in between, ends
    there in a KeyError that names no file. Its session, its token rules and its errors are used here too.
    """
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = f"{hub.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}"
    headers = build_hf_headers(token=hub.token or False, library_name="spark_pipeline")
    with explained(hub, repo, revision, refusal=f"does not tell what {repo} holds"):
        response = get_session().get(url, params={"blobs": True}, headers=headers, timeout=timeout_seconds)
        hf_raise_for_status(response)
    try:
        answer = _Answer.model_validate_json(response.content)
    except ValidationError as error:
        raise _odd_answer(repo, f"{_problems(error)}\nit begins: {response.text[:200]!r}") from None
    if not is_commit(answer.sha) or (is_commit(revision) and answer.sha != revision):
        raise _odd_answer(repo, f"asked for {revision}, it answers about commit {answer.sha!r}")
    return _manifest(repo, answer)


class _LargeFile(BaseModel):
    sha256: str


class _Listed(BaseModel):
    """One file, as the hub lists it."""

    path: str = Field(alias="rfilename")
    size_bytes: NonNegativeInt = Field(alias="size")
    git_sha1: str | None = Field(None, alias="blobId")
    lfs: _LargeFile | None = None


class _Answer(BaseModel):
    """What of the hub's answer matters here; it has more."""

    sha: str
    siblings: list[dict[str, Any]]


def _manifest(repo: str, answer: _Answer) -> Manifest:
    if len(answer.siblings) >= MAX_FILES:
        raise _odd_answer(repo, f"{len(answer.siblings)} files; from {MAX_FILES} on the hub may leave some out")
    files = sorted((_file(repo, listed) for listed in answer.siblings), key=lambda file: file.path)
    # Two of one name would be fetched into one file by two threads.
    if twice := [file.path for file, following in pairwise(files) if file.path == following.path]:
        raise _odd_answer(repo, f"listed twice: {', '.join(twice[:5])}")
    manifest = Manifest(repo=repo, commit=answer.sha, files=tuple(files))
    refuse_empty(manifest)
    return manifest


def _file(repo: str, listed: dict[str, Any]) -> ManifestFile:
    try:
        one = _Listed.model_validate(listed)
    except ValidationError as error:
        raise _odd_answer(repo, f"{listed.get('rfilename', 'a file without a name')}: {_problems(error)}") from None
    try:
        if one.lfs:
            return ManifestFile(path=one.path, size_bytes=one.size_bytes, sha256=one.lfs.sha256)
        return ManifestFile(path=one.path, size_bytes=one.size_bytes, git_sha1=one.git_sha1)
    except ValidationError as error:
        raise WeightsError(
            f"{repo} is not taken as it is",
            observed=_problems(error),
            remedy="a repository with such files cannot be trusted; look at it on the hub",
        ) from None


def _odd_answer(repo: str, observed: str) -> HubError:
    return HubError(
        f"the hub's answer about {repo} is of no use",
        observed=observed,
        remedy="if that is not the hub itself, something answers in its place: see proxies, a network's login page, "
        "mirrors (HF_ENDPOINT, model.hub_url)",
    )


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    return "; ".join(": ".join([*(str(part) for part in problem["loc"]), problem["msg"]]) for problem in found[:3])
