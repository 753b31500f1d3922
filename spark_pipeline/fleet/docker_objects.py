"""Images and containers as Docker describes them.

`docker inspect` prints the Engine API's objects: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

# What an image is run with. Other keys of `Config` (Hostname, AttachStdin, Image, ...) are leftovers of the classic
# image store that the containerd store does not keep.
_CONFIG_KEYS = (
    *("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "ExposedPorts"),
    *("Volumes", "StopSignal", "Shell", "Healthcheck", "OnBuild"),
)


@dataclass(frozen=True)
class ImageFacts:
    """An image as a node holds it.

    Args:
        reference: what was asked for.
        image_id: 'sha256:...'; differs between image stores for equal images, so it is no identity across nodes.
        architecture: as the image says it: 'arm64', 'amd64'.
        layers: diff ids, lowest first.
        repo_digests: 'repo@sha256:...'; lost when an image travels by save and load.
        config_json: what the image is run with, in one spelling for every image store.
    """

    reference: str
    image_id: str
    architecture: str
    os: str
    layers: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size_bytes: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: str
    user: str
    labels: Mapping[str, str]
    config_json: str

    @property
    def fingerprint(self) -> str:
        """64 hex digits; equal on two nodes exactly when the same code would run in the same way."""
        identity = json.dumps([self.os, self.architecture, self.layers, self.config_json])
        return hashlib.sha256(identity.encode()).hexdigest()


@dataclass(frozen=True)
class Container:
    """A container as its node sees it.

    Args:
        state: 'created', 'running', 'paused', 'restarting', 'removing', 'exited' or 'dead'.
        exit_code: of the last end; None while it has not ended.
        started_at: the engine's own text, '0001-01-01T00:00:00Z' before the first start.
    """

    node: str
    name: str
    container_id: str
    image_id: str
    labels: Mapping[str, str]
    state: str
    exit_code: int | None
    started_at: str


def parse_image(reference: str, text: str) -> ImageFacts:
    """An image from the JSON of `docker image inspect`."""
    raw = json.loads(text)
    config = raw.get("Config") or {}
    normal = {key: config[key] for key in _CONFIG_KEYS if config.get(key)}
    return ImageFacts(
        reference=reference,
        image_id=raw["Id"],
        architecture=raw["Architecture"],
        os=raw["Os"],
        layers=tuple((raw.get("RootFS") or {}).get("Layers") or ()),
        repo_digests=tuple(raw.get("RepoDigests") or ()),
        size_bytes=int(raw.get("Size") or 0),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        environment=dict(item.partition("=")[::2] for item in config.get("Env") or ()),
        working_dir=config.get("WorkingDir") or "",
        user=config.get("User") or "",
        labels=dict(config.get("Labels") or {}),
        config_json=json.dumps(normal, sort_keys=True, separators=(",", ":")),
    )


def parse_container(node: str, text: str) -> Container:
    """A container from the JSON of `docker container inspect`."""
    raw = json.loads(text)
    state = raw["State"]
    ended = state["Status"] in ("exited", "dead")
    return Container(
        node=node,
        name=raw["Name"].removeprefix("/"),
        container_id=raw["Id"],
        image_id=raw["Image"],
        labels=dict(raw["Config"].get("Labels") or {}),
        state=state["Status"],
        exit_code=int(state["ExitCode"]) if ended else None,
        started_at=state.get("StartedAt") or "",
    )
