"""A hub: where it is, what it is shown, and what its refusals mean in our words."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_pipeline.errors import HubError, RevisionNotFoundError, WeightsError
from spark_pipeline.spec.deployment import Model

TIMEOUT_SECONDS = 20.0
GATED_REMEDY = "accept the licence on the model's page, then set HF_TOKEN to a token of that account that may read it"


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
        """The hub of a model. Raises WeightsError where HF_TOKEN holds what cannot be a token."""
        from huggingface_hub import constants  # HF_ENDPOINT, or the public hub

        endpoint = (model.hub_url or constants.ENDPOINT).rstrip("/")
        token = _token()
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


def _token() -> str:
    """HF_TOKEN. What no header may hold is refused here: HTTP libraries quote such a token in their errors."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise WeightsError(
            "HF_TOKEN holds what cannot be a token",
            observed=f"{len(token)} characters, among them a blank, a line break or one beyond ASCII (not shown here)",
            remedy="set HF_TOKEN to the token alone: one word that begins with hf_, without quotes or a second line",
        )
    return token


def _may_have_a_token(endpoint: str) -> bool:
    """Encrypted, on this machine, or named in the environment next to the token itself."""
    address = urlsplit(endpoint)
    if address.scheme == "https" or endpoint == os.environ.get("HF_ENDPOINT", "").strip().rstrip("/"):
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return address.hostname == "localhost"


@contextmanager
def explained(hub: Hub, repo: str, revision: str, *, refusal: str) -> Iterator[None]:
    """Turn what huggingface_hub raises inside the block into errors that say what to do.

    Args:
        refusal: what the hub did not do, as the end of a sentence that begins with its address.

    Raises:
        RevisionNotFoundError: the hub has no such repository or revision.
        HubError: the hub refuses, or cannot be reached.
    """
    from huggingface_hub import errors as hub_errors

    try:
        yield
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
            f"{hub.endpoint} {refusal}",
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


def _words(error: Exception) -> str:
    """The hub's own words, without the address that was asked."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    return f"HTTP {status}: {said}" if status else said
