"""What a registry says of an image, without pulling anything.

Asked with a HEAD of the manifest (OCI distribution specification 1.1, "Checking if content exists"); for platforms and
size with the manifests themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from spark_pipeline.image.reference import Reference
from spark_pipeline.image.registry_client import NoManifest, ask

if TYPE_CHECKING:
    from dxf import DXF

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFEST_TYPES = ("application/vnd.docker.distribution.manifest.", "application/vnd.oci.image.")


@dataclass(frozen=True)
class RemoteImage:
    """What a registry tells before a byte of the image is pulled.

    Args:
        digest: of the manifest, or list of manifests, behind the tag.
        platforms: 'linux/arm64' and the like, all that there are.
        size_bytes: compressed layers of the platform that was asked for, as they will be pulled; None where the image
            is not made for it.
    """

    digest: str
    platforms: tuple[str, ...]
    size_bytes: int | None

    def runs_on(self, architecture: str) -> bool:
        return any(platform.split("/")[:2] == ["linux", architecture] for platform in self.platforms)


def remote_digest(reference: str, timeout_seconds: float = 10) -> str:
    """The digest (`sha256:` and 64 hex) of the manifest, or list of manifests, behind a tag in its registry.

    Args:
        reference: as declared; by digest, it is confirmed to be there.
        timeout_seconds: for each answer of the registry, and of the server that hands out its tokens.

    Raises:
        ImageNotFoundError: the registry knows no such image (404).
        NotAllowedError: this login may not see it, if there is one (401, 403: Docker Hub's words for both).
        RegistryError: anything else, which may pass: too many requests, a fault of the server or of the network.
    """
    return ask(reference, timeout_seconds, _digest)


def remote_image(reference: str, architecture: str, timeout_seconds: float = 10) -> RemoteImage:
    """Digest, platforms and size of an image in its registry: two or three small answers, nothing is pulled.

    Args:
        architecture: Docker's name of the nodes' processors: 'arm64', 'amd64'.

    Raises:
        ImageNotFoundError, NotAllowedError, RegistryError: see `remote_digest`.
    """

    def describe(client: DXF, wanted: Reference) -> RemoteImage:
        digest = _digest(client, wanted)
        manifest = json.loads(client.get_manifest_and_response(digest)[0])
        if "manifests" not in manifest:
            config = json.loads(b"".join(cast(Iterable[bytes], client.pull_blob(manifest["config"]["digest"]))))
            platform = f"{config['os']}/{config['architecture']}"
            return RemoteImage(digest, (platform,), _layers_bytes(manifest))
        listed = {
            "/".join(entry["platform"].get(key, "") for key in ("os", "architecture", "variant")).strip("/"): entry
            for entry in manifest["manifests"]
            if entry.get("platform", {}).get("os", "unknown") != "unknown"  # attestations stand in the same list
        }
        found = RemoteImage(digest, tuple(listed), None)
        if not found.runs_on(architecture):
            return found
        own = next(entry for name, entry in listed.items() if name.split("/")[:2] == ["linux", architecture])
        return replace(found, size_bytes=_layers_bytes(json.loads(client.get_manifest_and_response(own["digest"])[0])))

    return ask(reference, timeout_seconds, describe)


def _digest(client: DXF, wanted: Reference) -> str:
    digest, response = client.head_manifest_and_response(wanted.manifest)
    if not response.headers.get("Content-Type", "").startswith(_MANIFEST_TYPES):
        raise NoManifest(f"content type {response.headers.get('Content-Type')!r} instead of a manifest")
    if digest is None:  # the header is only a SHOULD of the specification
        _, response = client.get_manifest_and_response(wanted.manifest)
        digest = "sha256:" + hashlib.sha256(response.content).hexdigest()
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest {digest[:80]!r}")
    return digest


def _layers_bytes(manifest: dict[str, Any]) -> int:
    return sum(layer["size"] for layer in manifest["layers"])
