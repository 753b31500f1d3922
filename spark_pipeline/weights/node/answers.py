"""How a source is asked, and what its answers mean: which are the file, which are worth another try, which end it."""

from __future__ import annotations

import email.utils
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from spark_pipeline.weights.node.messages import Problem, Source, WantedFile

MAX_PAUSE_SECONDS = 300.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class TransientError(Exception):
    """Worth another try."""

    def __init__(self, what: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_seconds = retry_after_seconds


class MisfitError(TransientError):
    """The answer does not go on where the part ends. From a source that repeats it, only the whole file can be had."""


class WrongSizeError(TransientError):
    """The answer is of another length than the file: a page about maintenance, or, when it repeats, another file."""


def opener(*, direct: bool) -> urllib.request.OpenerDirector:
    """Asks as the node's environment says, which may name a proxy on the way to the hub; `direct`: by none."""
    no_proxy = [urllib.request.ProxyHandler({})] if direct else []
    return urllib.request.build_opener(*no_proxy, _Redirects)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A hub redirects to a CDN with a signed address: the token is none of the CDN's business.

    Addresses are compared as they were asked for: behind a proxy, a request's `host` is the proxy's.
    """

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 follows none

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        redirected = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if redirected and _origin(redirected.full_url) != _origin(req.full_url):
            redirected.remove_header("Authorization")
        return redirected


def begins_at(answer: Any, file: WantedFile, asked_from: int) -> int:
    """The file's byte that an answer begins with: the one asked for, or 0 where the server ignores ranges.

    Raises:
        WrongSizeError, MisfitError: this answer is not to be taken, and no reason to lose what is there.
    """
    if answer.status == 206:
        said = answer.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(said)
        if match and match[2] not in ("*", str(file.size_bytes)):
            raise WrongSizeError(f"{match[2]} bytes")
        if not match or int(match[1]) != asked_from:
            raise MisfitError(f"asked for bytes from {asked_from}, got {said or 'no range'}")
        return asked_from
    length = answer.headers.get("Content-Length")
    if length is None and asked_from:
        raise MisfitError(f"asked for bytes from {asked_from}, got something of unknown length")
    if length is not None and not length.isdecimal():
        raise MisfitError(f"got {length!r} for a length")
    if length is not None and int(length) != file.size_bytes:
        raise WrongSizeError(f"{length} bytes")
    return 0


def judge(file: WantedFile, error: urllib.error.HTTPError, source: Source) -> Exception:
    """What a refusal means. Addresses are left out: a CDN's carries a signature."""
    observed = f"HTTP {error.code} {error.headers.get('X-Error-Message') or error.reason}"
    who = "the head" if source.direct else "the hub"
    answered_elsewhere = _origin(error.url) != _origin(source.base_url)
    if error.code == 416:
        return MisfitError(observed)
    if error.code in (401, 403) and not answered_elsewhere:
        return Problem("gated", f"{who} refuses {file.path}", observed)
    if error.code in (404, 410) and not answered_elsewhere:
        return Problem("vanished", f"{who} has no {file.path} any more", observed)
    # From elsewhere 403 means a signature that ran out; the hub makes a new one with the next request.
    if answered_elsewhere or error.code in (408, 429) or error.code >= 500:
        return TransientError(observed, _retry_after(error.headers.get("Retry-After", "")))
    return Problem("hub", f"{who} refuses {file.path}", observed)


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _retry_after(value: str) -> float | None:
    """Seconds, given as such or as a date; never more than MAX_PAUSE_SECONDS."""
    if value.strip().isdecimal():
        return min(float(value), MAX_PAUSE_SECONDS)
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return min(max(at.timestamp() - time.time(), 1.0), MAX_PAUSE_SECONDS)
