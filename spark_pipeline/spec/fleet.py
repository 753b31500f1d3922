"""The machines, as declared in data/fleets/*.yaml."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from spark_pipeline.spec.base import Declaration, Matches, Name

HostName = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9.:-]*", "write a host name or an address, without user@")]
UserName = Annotated[
    str, Matches(r"[a-z_][a-z0-9_-]*", "write a login of lower-case letters, digits, _ and -, such as aurora")
]


class Accelerator(StrEnum):
    """What a node computes with."""

    NVIDIA = "nvidia"
    NONE = "none"


class Ssh(Declaration):
    """How the orchestrator reaches a node."""

    host: HostName = Field(description="Address or name, as seen from the orchestrator or from `via`.")
    user: UserName = Field(description="Login; member of the group docker, never root.")
    port: int = Field(default=22, ge=1, le=65535)
    via: Name | None = Field(default=None, description="Node through which this one is reached (jump host).")
    key: str | None = Field(default=None, description="Private key file; default: the agent's and ~/.ssh's keys.")


class Node(Declaration):
    """One machine. A node has one accelerator, as every DGX Spark has."""

    name: Name
    ssh: Ssh | None = Field(default=None, description="Left out with `local: true`: the orchestrator runs there.")
    local: bool = False
    fabric: IPv4Address = Field(description="Address on the fast interconnect; ranks talk over it.")
    internet: bool = Field(default=True, description="Whether the node itself reaches hub and registry.")

    @model_validator(mode="after")
    def _reached_one_way(self) -> Self:
        if self.local == (self.ssh is not None):
            raise ValueError("give either `ssh: {host: ..., user: ...}` or `local: true`")
        return self


class Fleet(Declaration):
    """Machines that serve together. The first node is the head: rank 0, the one that gets weights and image first."""

    name: Name
    accelerator: Accelerator
    weights_dir: str = Field(description="Absolute directory on every node; holds <repo>/<commit>/.")
    nodes: tuple[Node, ...] = Field(min_length=1)

    @field_validator("weights_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not path.is_absolute() or ".." in path.parts or len(path.parts) < 3:
            raise ValueError("must be an absolute directory below a home or data directory, such as /home/me/models")
        return str(path)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [node.name for node in self.nodes]
        _refuse_twice("node name", names)
        _refuse_twice("fabric address", [str(node.fabric) for node in self.nodes])
        earlier: set[str] = set()
        for node in self.nodes:
            via = node.ssh.via if node.ssh else None
            if via is not None and via not in names:
                raise ValueError(f"node {node.name!r}: via {via!r} is not a node of this fleet: {', '.join(names)}")
            if via is not None and via not in earlier:
                raise ValueError(f"node {node.name!r}: via {via!r} must be declared before it")
            earlier.add(node.name)
        if not self.head.internet:
            raise ValueError(
                f"the first node, {self.head.name!r}, downloads weights and image: it needs internet: true"
            )
        return self

    @property
    def head(self) -> Node:
        return self.nodes[0]

    def node(self, name: str) -> Node:
        """The node of this name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def _refuse_twice(what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{what} given twice: {', '.join(twice)}")
