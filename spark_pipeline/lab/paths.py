"""Where the virtual fleet keeps its files: one cache folder, nothing anywhere else on the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/spark_pipeline/lab`, by default under `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "spark_pipeline" / "lab"


@dataclass(frozen=True)
class LabPaths:
    """The folders of one lab.

    `cache` holds what every lab on this machine shares and what is costly to make (the roots);
    `own` holds what belongs to one lab. For the usual lab they are the same folder.
    """

    cache: Path
    own: Path

    @classmethod
    def default(cls) -> LabPaths:
        """The paths of the lab that everybody shares."""
        return cls(cache=default_cache(), own=default_cache())

    @classmethod
    def beside(cls, name: str) -> LabPaths:
        """The paths of a second lab, which uses the same roots and shares nothing else (for tests)."""
        return cls(cache=default_cache(), own=default_cache() / "beside" / name)

    @property
    def roots(self) -> Path:
        """Root file systems, one folder per content hash of its recipe."""
        return self.cache / "root"

    @property
    def tools(self) -> Path:
        """Programs unpacked from Debian packages without installing them."""
        return self.cache / "tools"

    @property
    def nodes(self) -> Path:
        """Disks of the nodes."""
        return self.own / "nodes"

    @property
    def ssh(self) -> Path:
        """Keys: kept, so that pinned host keys stay true from one `up` to the next."""
        return self.own / "ssh"

    @property
    def run(self) -> Path:
        """Pid files, logs and the lock of what runs now."""
        return self.own / "run"

    @property
    def hub(self) -> Path:
        """What the hub serves."""
        return self.own / "hub"

    @property
    def registry(self) -> Path:
        """What the registry stores."""
        return self.own / "registry"

    @property
    def key(self) -> Path:
        """The orchestrator's private key, accepted by every node for user `spark`."""
        return self.ssh / "id_ed25519"

    def disk(self, node: str) -> Path:
        """The disk of one node."""
        return self.nodes / node
