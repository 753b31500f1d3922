"""What the lab is right now, as data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeStatus:
    """One node."""

    name: str
    management: str | None  # the head alone has one
    fabric: str
    fabric_twin: str
    pid: int | None  # of its first process, on the host; None: it does not run
    ssh_ok: bool
    docker_ok: bool
    docker_version: str | None

    @property
    def ok(self) -> bool:
        """Whether it can be used."""
        return self.pid is not None and self.ssh_ok and self.docker_ok


@dataclass(frozen=True)
class LabStatus:
    """The whole lab."""

    nodes: tuple[NodeStatus, ...]
    hub_url: str
    hub_ok: bool
    registry: str
    registry_ok: bool
    key: Path
    user: str

    @property
    def up(self) -> bool:
        """Whether everything that was started can be used."""
        return bool(self.nodes) and all(node.ok for node in self.nodes) and self.hub_ok and self.registry_ok

    def node(self, name: str) -> NodeStatus | None:
        """The node of that name."""
        return next((node for node in self.nodes if node.name == name), None)

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps({"up": self.up, **asdict(self)}, default=str, indent=2)

    def to_text(self) -> str:
        """A few lines for a person."""
        if not self.nodes:
            return "the lab is down; start it with: spark-pipeline lab up"
        lines = [f"the lab is {'up' if self.up else 'not whole; mend it with: spark-pipeline lab up'}"]
        for node in self.nodes:
            reached = node.management or "through the head"
            docker = f"docker {node.docker_version}" if node.docker_ok else "docker does not answer"
            ssh = "ssh answers" if node.ssh_ok else "ssh does not answer"
            state = f"pid {node.pid}, {ssh}, {docker}" if node.pid else "does not run"
            lines.append(f"  {node.name:8} {node.fabric:15} {reached:17} {state}")
        lines.append(f"  hub      {self.hub_url} {_answers(self.hub_ok)}")
        lines.append(f"  registry {self.registry} {_answers(self.registry_ok)}")
        if head := self.node("head"):
            lines.append(f"  enter    ssh -i {self.key} {self.user}@{head.management}")
        return "\n".join(lines)


def _answers(ok: bool) -> str:
    return "answers" if ok else "does not answer"
