"""What has to be done so that every node holds the model: decided from what was seen, without touching anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_pipeline.errors import NoRoomError, WeightsError
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import BadFile, LinkableFile, Report, WantedFile

# Directories, our own notes and what a file system needs for itself: a share of the bytes, and a block for each file.
_OVERHEAD = 0.01
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class NodePlan:
    """What one node lacks.

    Args:
        prove: there, with the right size, but not read since they last changed: to be digested.
        replace: there, but wrong: to be set aside and brought again.
        bring: absent, or about to be, and not linked: downloaded on the head, copied to a peer.
        bring_bytes: still to be written here, without the parts that earlier runs left.
        needed_bytes: free space for that.
        seal: the marker is missing, names another manifest, or was written before the node was restarted.
        before_restart: paths of those in `prove` that are as they were proven, but the node was restarted since.
        link: absent, or about to be, and another revision on this node has the same bytes: each node links its own.
    """

    node: str
    prove: tuple[WantedFile, ...]
    replace: tuple[BadFile, ...]
    bring: tuple[WantedFile, ...]
    bring_bytes: int
    needed_bytes: int
    free_bytes: int
    seal: bool
    before_restart: tuple[str, ...] = ()
    link: tuple[tuple[WantedFile, LinkableFile], ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.prove or self.replace or self.link or self.bring or self.seal)

    @property
    def has_room(self) -> bool:
        return self.needed_bytes <= self.free_bytes


@dataclass(frozen=True)
class WeightsPlan:
    """The nodes in rank order; the first is the head."""

    manifest: Manifest
    directory: str
    nodes: tuple[NodePlan, ...]

    @property
    def head(self) -> NodePlan:
        return self.nodes[0]

    @property
    def peers(self) -> tuple[NodePlan, ...]:
        return self.nodes[1:]

    @property
    def changes(self) -> bool:
        return any(node.changes for node in self.nodes)

    def reasons(self) -> tuple[str, ...]:
        """One sentence a finding."""
        size = human_bytes(self.manifest.size_bytes)
        what = f"{self.manifest.repo} at {self.manifest.commit}: {len(self.manifest.files)} files, {size}"
        return (what, *(reason for node in self.nodes for reason in _reasons(node, is_head=node is self.head)))


def plan(manifest: Manifest, directory: str, reports: Mapping[str, Report]) -> WeightsPlan:
    """Compare what belongs to the model with what each node has.

    Args:
        reports: node name -> what its program saw, in rank order.

    Raises:
        WeightsError: something stands in the way, or may not be written. No byte has moved by then.
        NoRoomError: it does not fit.
    """
    planned = WeightsPlan(
        manifest, directory, tuple(_plan_node(manifest, name, report) for name, report in reports.items())
    )
    for node in planned.nodes:
        _refuse_obstacles(node, reports[node.node], directory)
    _refuse_lack_of_room(planned)
    return planned


def without_room(manifest: Manifest, reports: Mapping[str, Report]) -> tuple[str, ...]:
    """The nodes for which `plan` raises NoRoomError."""
    return tuple(name for name, report in reports.items() if not _plan_node(manifest, name, report).has_room)


def _plan_node(manifest: Manifest, name: str, report: Report) -> NodePlan:
    unproven = set(report.unproven)
    wrong = {bad.path for bad in report.bad}
    parts = {file.path: file.part_bytes for file in report.absent}
    lacking = [file for file in manifest.wanted if file.path in parts or file.path in wrong]
    linkable = {file.path: file for file in report.linkable}
    bring = tuple(file for file in lacking if file.path not in linkable)
    bring_bytes = sum(file.size_bytes - parts.get(file.path, 0) for file in bring)
    return NodePlan(
        node=name,
        prove=tuple(file for file in manifest.wanted if file.path in unproven),
        before_restart=report.before_restart,
        replace=report.bad,
        link=tuple((file, linkable[file.path]) for file in lacking if file.path in linkable),
        bring=bring,
        bring_bytes=bring_bytes,
        needed_bytes=round(bring_bytes * (1 + _OVERHEAD)) + len(bring) * _BLOCK_BYTES if bring else 0,
        free_bytes=report.free_bytes,
        seal=report.sealed != manifest.sha256,
    )


def _refuse_obstacles(node: NodePlan, report: Report, directory: str) -> None:
    if report.obstacle:
        raise WeightsError(
            "something stands where the model should lie",
            node=node.node,
            observed=report.obstacle,
            remedy=f"move it away: {directory} must hold plain files and directories only",
        )
    if node.changes and report.unwritable:
        raise WeightsError(
            "the model's directory may not be written",
            node=node.node,
            observed=report.unwritable,
            remedy=f"give the directory to that user, or change weights_dir of the fleet; wanted: {directory}",
        )


def _refuse_lack_of_room(planned: WeightsPlan) -> None:
    short = [node for node in planned.nodes if not node.has_room]
    if not short:
        return
    lines = [
        f"{node.node}: needs {human_bytes(node.needed_bytes)}, free {human_bytes(node.free_bytes)}, "
        f"missing {human_bytes(node.needed_bytes - node.free_bytes)}"
        for node in short
    ]
    raise NoRoomError(
        f"{planned.manifest.repo} does not fit",
        node=short[0].node if len(short) == 1 else None,
        observed="\n".join(lines),
        remedy=f"free some room on the disk of {planned.directory}, or change weights_dir",
    )


def _reasons(node: NodePlan, *, is_head: bool) -> list[str]:
    if not node.changes:
        return [f"{node.node}: every file is there, proven and unchanged since"]
    reasons: list[str] = []
    before_restart = set(node.before_restart)
    again = [file for file in node.prove if file.path in before_restart]
    changed = [file for file in node.prove if file.path not in before_restart]
    if again:
        what = f"{_files(again)} ({_size(again)}) there"
        reasons.append(f"{node.node}: {what}, but {node.node} was restarted since they were proven: read")
    if changed:
        what = f"{_files(changed)} ({_size(changed)}) there"
        reasons.append(f"{node.node}: {what} but not proven since they last changed: read")
    reasons += [
        f"{node.node}: {bad.path} is wrong ({bad.actual}, not {bad.expected}): set aside" for bad in node.replace
    ]
    reasons += _links(node)
    if node.bring:
        way = "download from the hub" if is_head else "copy from the head over the fabric"
        room = f"{human_bytes(node.needed_bytes)} of {human_bytes(node.free_bytes)} free"
        reasons.append(f"{node.node}: {_files(node.bring)} missing: {way} {human_bytes(node.bring_bytes)} ({room})")
    if node.seal and not (node.prove or node.replace or node.link or node.bring):
        reasons.append(f"{node.node}: all files proven, only the marker is missing: write it")
    return reasons


def _links(node: NodePlan) -> list[str]:
    """One sentence for each revision, and way, that files come from."""
    groups: dict[tuple[str, bool], list[WantedFile]] = {}
    for file, found in node.link:
        groups.setdefault((found.commit, found.read_first), []).append(file)
    return [
        f"{node.node}: {_files(files)} ({_size(files)}) {'is that' if len(files) == 1 else 'are those'} of revision "
        f"{commit[:12]}: {'read, then linked' if read_first else 'linked'}"
        for (commit, read_first), files in groups.items()
    ]


def _size(files: Sequence[WantedFile]) -> str:
    return human_bytes(sum(file.size_bytes for file in files))


def _files(files: Sequence[WantedFile]) -> str:
    if len(files) == 1:
        return files[0].path
    return f"{len(files)} files"
