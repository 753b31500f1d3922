"""One conversation with an image registry: who is asked, with which login, and what its refusals mean.

The protocol and its token exchange are python-dxf's, the credentials those of `docker login` on the machine this runs
on (config file and credential helpers, read by Docker's own SDK).

Plain http: https is always tried first. Only a registry given as `localhost` or as a literal address of a loopback or
private range may then be asked in plain http, and never with credentials (docs/decisions/0020-image-identity.md).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from spark_pipeline.errors import ImageNotFoundError, RegistryError
from spark_pipeline.image.reference import DEFAULT_REGISTRY, Reference

if TYPE_CHECKING:
    from dxf import DXF

Answer = TypeVar("Answer")


class NotAllowedError(RegistryError):
    """The registry answered: not for this login. Asking again changes nothing."""


class NoManifest(Exception):
    """Something answered, and it is no registry."""


class _TlsRefused(Exception):
    """Nothing at this address speaks TLS: nobody listens, or what listens speaks plain http."""


def ask(reference: str, timeout_seconds: float, question: Callable[[DXF, Reference], Answer]) -> Answer:
    """Put a question to the registry that a reference names.

    Args:
        timeout_seconds: for each answer of the registry, and of the server that hands out its tokens.

    Raises:
        ImageNotFoundError, NotAllowedError, RegistryError.
    """
    wanted = Reference.parse(reference)
    for insecure in (False, True):
        try:
            return _ask_once(wanted, reference, insecure, timeout_seconds, question)
        except _TlsRefused as error:
            if insecure or not _may_be_plain(wanted.registry):
                raise RegistryError(
                    f"no answer about {reference} from registry {wanted.registry}",
                    observed=str(error),
                    remedy=f"curl -v https://{_host(wanted.registry)}/v2/ on this machine shows what is in the way; "
                    "plain http is only spoken to localhost and to literal private addresses",
                ) from error
    raise AssertionError("the second round returns or raises")


def _ask_once(
    wanted: Reference,
    reference: str,
    insecure: bool,
    timeout_seconds: float,
    question: Callable[[DXF, Reference], Answer],
) -> Answer:
    # Here, not above: Docker's SDK takes 0.3 s to import, and most runs ask no registry.
    from dxf import DXF
    from dxf.exceptions import DXFAuthInsecureError, DXFDigestMismatchError, DXFUnauthorizedError
    from requests.exceptions import ConnectionError, HTTPError, RequestException, SSLError, Timeout

    def refused(observed: str, remedy: str, kind: type[RegistryError] = RegistryError) -> RegistryError:
        return kind(f"registry {wanted.registry} does not show {reference}", observed=observed, remedy=remedy)

    login = "docker login" if wanted.registry == DEFAULT_REGISTRY else f"docker login {wanted.registry}"
    try:
        with DXF(
            _host(wanted.registry), wanted.repository, _authenticate(wanted.registry), insecure, timeout=timeout_seconds
        ) as client:
            return question(client, wanted)
    except NoManifest as error:
        raise refused(str(error), "is something else listening there, such as a login page of the network?") from error
    except DXFUnauthorizedError as error:
        remedy = f"check the name; if it is a private image: {login}"
        raise refused("401 Unauthorized", remedy, NotAllowedError) from error
    except DXFAuthInsecureError as error:
        raise refused(
            "it asks for a login in plain http",
            "give the registry TLS: credentials are never sent in the clear",
            NotAllowedError,
        ) from error
    except HTTPError as error:
        answer = error.response
        assert answer is not None  # it was raised for the answer's status
        status = answer.status_code
        if status == 404:
            raise ImageNotFoundError(
                f"registry {wanted.registry} has no {reference}", observed="404 Not Found", remedy="check name and tag"
            ) from error
        if status == 403:
            remedy = f"this login may not read it; with another: {login}"
            raise refused("403 Forbidden", remedy, NotAllowedError) from error
        if status == 429:
            raise refused("429 Too Many Requests", f"wait, or raise the limit with a login: {login}") from error
        raise refused(f"{status} {answer.reason}", "try again later") from error
    except Timeout as error:
        raise refused(f"no answer within {timeout_seconds:g} s", "check the network, or try again later") from error
    except SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise refused(_cause(error), "let this machine trust the registry's certificate authority") from error
        raise _TlsRefused(_cause(error)) from error
    except ConnectionError as error:
        raise _TlsRefused(_cause(error)) from error
    except (RequestException, DXFDigestMismatchError, KeyError, ValueError) as error:
        raise refused(f"{type(error).__name__}: {error}", "is this the address of an image registry?") from error


def _cause(error: Exception) -> str:
    """The innermost words: requests wraps what urllib3 wraps, with the URL in each."""
    wrapped = error.args[0] if error.args else error
    return str(getattr(wrapped, "reason", None) or error)


def _host(registry: str) -> str:
    """Where to ask: Docker's default domain is a name in references only, its index is what answers."""
    from docker.auth import INDEX_URL

    return urlsplit(INDEX_URL).netloc if registry == DEFAULT_REGISTRY else registry


def _authenticate(registry: str) -> Callable[..., None]:
    """What the client calls on a 401: log in as `docker login` left it, else anonymously."""

    def log_in(client: object, response: object) -> None:
        from docker import auth
        from docker.errors import DockerException

        try:
            entry = auth.load_config().resolve_authconfig(registry) or {}
        except DockerException as error:
            raise RegistryError(
                f"the credential helper for registry {registry} failed",
                observed=str(error),
                remedy="mend credsStore or credHelpers in Docker's config.json on this machine",
            ) from error
        # A credential helper's answer has its keys in upper case, the config file's entries do not.
        client.authenticate(  # type: ignore[attr-defined]
            entry.get("username") or entry.get("Username"),
            entry.get("password") or entry.get("Password"),
            response=response,
        )

    return log_in


def _may_be_plain(registry: str) -> bool:
    """Whether a registry may be asked in plain http: this machine, or a literal address of a private network.

    Docker's own rule allows 127.0.0.0/8 only and needs `insecure-registries` for more; asking for a digest gives
    nothing away, so private addresses need no setting of ours beside Docker's."""
    host = urlsplit(f"//{registry}").hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private
