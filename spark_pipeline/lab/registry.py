"""Images into the lab's OCI registry, and tags that move there, as a publisher of images does it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPResponse

from spark_pipeline.errors import LabError
from spark_pipeline.lab.images import HEAD
from spark_pipeline.lab.lab import Lab

_PUSH_LIMIT_S = 900
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"


def push(lab: Lab, image: str, repository: str, tag: str) -> str:
    """Push an image of the head's Docker as `repository:tag`; returns its digest (`sha256:` and 64 hex).

    The head keeps no second name for it. Layers that the registry has are not sent again.

    Raises:
        LabError: the head has no such image, or the registry did not take it.
    """
    reference = name_in_registry(lab, repository, tag)
    _docker(lab, "tag", image, reference)
    try:
        said = _docker(lab, "push", reference, timeout_s=_PUSH_LIMIT_S)
    finally:
        lab.run_in_node(HEAD, ["docker", "image", "rm", "--no-prune", reference], timeout=60)
    found = _PUSHED.search(said)
    if found is None:
        raise LabError(f"docker push of {reference} told no digest", node=HEAD, observed=said[-500:])
    return found[1]


def name_in_registry(lab: Lab, repository: str, tag: str) -> str:
    """What to write under `image.candidates` for it."""
    return f"{lab.plan.registry_address}/{repository}:{tag}"


def retag(lab: Lab, repository: str, tag: str, new_tag: str) -> str:
    """Let `new_tag` name what `tag` names; returns the digest. Nothing but the manifest travels.

    Raises:
        LabError: there is no such tag.
    """
    with _ask(lab, "GET", f"{repository}/manifests/{tag}") as answer:
        manifest, kind = answer.read(), answer.headers["Content-Type"]
    with _ask(lab, "PUT", f"{repository}/manifests/{new_tag}", manifest, kind) as answer:
        return answer.headers["Docker-Content-Digest"]


def digest(lab: Lab, repository: str, tag: str) -> str:
    """The digest that a tag names now.

    Raises:
        LabError: there is no such tag.
    """
    with _ask(lab, "HEAD", f"{repository}/manifests/{tag}") as answer:
        return answer.headers["Docker-Content-Digest"]


def tags(lab: Lab, repository: str) -> tuple[str, ...]:
    """Every tag of a repository, sorted; none when there is no such repository."""
    try:
        with _ask(lab, "GET", f"{repository}/tags/list") as answer:
            return tuple(sorted(json.load(answer)["tags"] or ()))
    except LabError:
        return ()


def delete(lab: Lab, repository: str, tag: str) -> None:
    """Remove the manifest that a tag names: every tag of that digest is gone.

    Raises:
        LabError: there is no such tag.
    """
    _ask(lab, "DELETE", f"{repository}/manifests/{digest(lab, repository, tag)}").close()


def _docker(lab: Lab, *words: str, timeout_s: float = 60) -> str:
    answer = lab.run_in_node(HEAD, ["docker", *words], timeout=timeout_s)
    if answer.returncode != 0:
        raise LabError(f"docker {words[0]} failed: docker {' '.join(words)}", node=HEAD, observed=answer.stderr[-500:])
    return answer.stdout


def _ask(lab: Lab, method: str, path: str, body: bytes | None = None, kind: str = "") -> HTTPResponse:
    url = f"http://{lab.plan.registry_address}/v2/{path}"
    headers = {"Accept": _MANIFESTS, **({"Content-Type": kind} if kind else {})}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy knows no lab addresses
    try:
        return direct.open(urllib.request.Request(url, body, headers, method=method), timeout=30)
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:300] or str(error)
        raise LabError(f"the lab's registry refused {method} {path}", observed=f"{error.code}: {said}") from error
    except OSError as error:
        remedy = "spark-pipeline lab up"
        raise LabError(f"the lab's registry does not answer at {url}", observed=str(error), remedy=remedy) from error
