"""How a node is reached, in words that every error about the way there repeats."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.spec.fleet import Fleet, Node, Ssh


@dataclass(frozen=True)
class Route:
    """The way to one node."""

    fleet: str
    node: str
    ssh: Ssh
    via: Node | None

    @classmethod
    def to(cls, fleet: Fleet, node: Node) -> Route:
        """The way to a node that is reached by ssh."""
        assert node.ssh is not None  # local nodes have no way to them
        return cls(fleet.name, node.name, node.ssh, fleet.node(node.ssh.via) if node.ssh.via else None)

    @property
    def target(self) -> str:
        """'aurora@192.168.200.13:22 via head (aurora@10.1.230.180:22)'."""
        own = f"{self.ssh.user}@{self.ssh.host}:{self.ssh.port}"
        if self.via is None:
            return own
        if self.via.ssh is None:
            return f"{own} via {self.via.name} (this machine)"
        return f"{own} via {self.via.name} ({self.via.ssh.user}@{self.via.ssh.host}:{self.via.ssh.port})"

    @property
    def seen_from(self) -> str:
        """Where the node's address has to be reachable from."""
        return "this machine" if self.via is None or self.via.ssh is None else f"node {self.via.name}"

    def by_hand(self, program: str = "ssh") -> str:
        """The same login as a person would type it: `ssh`, or a program that takes ssh's options."""
        words = [program]
        if self.ssh.key:
            words += ["-i", self.ssh.key]
        if self.via is not None and self.via.ssh is not None:
            words += ["-o", f"ProxyJump={self.via.ssh.user}@{self.via.ssh.host}:{self.via.ssh.port}"]
        if self.ssh.port != 22:
            words += ["-p", str(self.ssh.port)]
        return " ".join([*words, f"{self.ssh.user}@{self.ssh.host}"])
