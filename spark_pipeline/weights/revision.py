"""Asking the hub, once per run: which commit is meant, and what belongs to it."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from spark_pipeline.errors import HubError, RevisionNotFoundError, WeightsError
from spark_pipeline.spec.deployment import Model
from spark_pipeline.weights.manifest import Manifest, ManifestFile, read_manifest, refuse_empty

TIMEOUT_SECONDS = 20.0
# From here on the hub may cut the list of files (huggingface_hub, VERY_LARGE_REPO_THRESHOLD).
MAX_FILES = 50_000
GATED_REMEDY = "accept the licence on the model's page, then set HF_TOKEN to a token of that account that may read it"

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Hub:
    """A hub, and what we show it. The token comes from HF_TOKEN and from nowhere else, so that one stored on this
    machine for the public hub is never shown to another.

    Args:
        is_token_withheld: there is a token, and it was not meant to cross a network readable for everybody.
    """

    endpoint: str
    token: str = field(default="", repr=False)
    is_token_withheld: bool = False

    @classmethod
    def of(cls, model: Model) -> Hub:
        from huggingface_hub import constants  # takes half a second: only who asks a hub pays

        endpoint = (model.hub_url or constants.ENDPOINT).rstrip("/")
        token = os.environ.get("HF_TOKEN", "").strip()
        if token and not _may_have_a_token(endpoint):
            return cls(endpoint, is_token_withheld=True)
        return cls(endpoint, token)

    def advice(self, remedy: str) -> str:
        """What to do when this hub refuses: `remedy`, unless it was never shown the token that there is."""
        if not self.is_token_withheld:
            return remedy
        return (
            f"HF_TOKEN is set, but was not sent: {self.endpoint} is not https, so everybody on the way could read it. "
            f"Declare an https hub_url, or, if you trust that network: export HF_ENDPOINT={self.endpoint}"
        )

    def files_url(self, repo: str, commit: str) -> str:
        """Where the files are: GET <this>/<path>."""
        return f"{self.endpoint}/{repo}/resolve/{commit}"

    def page_url(self, repo: str, commit: str) -> str:
        """Where a person looks at the revision."""
        return f"{self.endpoint}/{repo}/tree/{commit}"


def _may_have_a_token(endpoint: str) -> bool:
    """Encrypted, on this machine, or named in the environment next to the token itself."""
    address = urlsplit(endpoint)
    if address.scheme == "https" or endpoint == os.environ.get("HF_ENDPOINT", "").strip().rstrip("/"):
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return address.hostname == "localhost"


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
    from huggingface_hub import errors as hub_errors

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="spark_pipeline")
    try:
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout_seconds)
    except hub_errors.GatedRepoError as error:
        raise HubError(f"{repo} is gated", observed=_words(error), remedy=hub.advice(GATED_REMEDY)) from None
    except hub_errors.RevisionNotFoundError as error:
        raise RevisionNotFoundError(
            f"{repo} has no revision {revision!r}",
            observed=_words(error),
            remedy=f"see the branches, tags and commits on {hub.endpoint}/{repo}, then mend model.revision",
        ) from None
    except hub_errors.RepositoryNotFoundError as error:
        raise RevisionNotFoundError(
            f"no model {repo!r} on {hub.endpoint}",
            observed=_words(error),
            remedy=hub.advice("mend model.repo; for a private one set HF_TOKEN to a token that may read it"),
        ) from None
    except hub_errors.OfflineModeIsEnabled:
        raise HubError(
            f"{hub.endpoint} was not asked",
            observed="HF_HUB_OFFLINE is set in this environment",
            remedy="unset HF_HUB_OFFLINE",
        ) from None
    except hub_errors.HfHubHTTPError as error:
        is_refused = error.response.status_code in (401, 403)
        raise HubError(
            f"{hub.endpoint} does not tell what {repo} holds",
            observed=_words(error),
            remedy=hub.advice(GATED_REMEDY)
            if is_refused
            else "run the same again later; it is the hub's answer, not ours",
        ) from None
    except hub_errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage] (its HTTP library changes)
        raise HubError(
            f"{hub.endpoint} cannot be reached",
            observed=str(error) or type(error).__name__,
            remedy="see that this machine reaches it (network, proxy, HF_ENDPOINT, model.hub_url), then run again",
        ) from None
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


def _words(error: Exception) -> str:
    """The hub's own words, without the address that was asked."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    return f"HTTP {status}: {said}" if status else said
