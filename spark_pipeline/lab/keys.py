"""SSH keys of a lab, made once and kept, so that pinned host keys stay true from one `up` to the next."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.lab.commands import run
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import NodePlan


def ensure_key(path: Path, comment: str) -> None:
    """Make an ed25519 key pair at `path` unless both halves are there."""
    public = path.with_name(path.name + ".pub")
    if path.exists() and public.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    public.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def host_key(paths: LabPaths, node: NodePlan) -> Path:
    """Private host key of a node."""
    return paths.ssh / f"host_{node.name}_ed25519"


def head_key(paths: LabPaths) -> Path:
    """Private key of user `spark` on the head, with which it reaches its peers, as NVIDIA's set-up does it."""
    return paths.ssh / "head_ed25519"


def public(key: Path) -> str:
    """The public half, one line with its newline."""
    return key.with_name(key.name + ".pub").read_text()


def ensure_keys(paths: LabPaths, nodes: tuple[NodePlan, ...]) -> None:
    """Make every key these nodes need."""
    ensure_key(paths.key, "orchestrator")
    ensure_key(head_key(paths), "spark@head")
    for node in nodes:
        ensure_key(host_key(paths, node), node.name)
