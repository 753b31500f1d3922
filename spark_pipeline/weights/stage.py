"""Stage model_weights: the model's files, at one commit, proven on every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from spark_pipeline.errors import NoRoomError, SparkPipelineError, VerificationError
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.fleet.progress import human_bytes, human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec import store
from spark_pipeline.weights import node_program
from spark_pipeline.weights.download import download
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.inventory import list_revisions
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Report
from spark_pipeline.weights.plan import WeightsPlan, without_room
from spark_pipeline.weights.plan import plan as decide
from spark_pipeline.weights.record import WeightsRecord, record_path
from spark_pipeline.weights.replicate import replicate
from spark_pipeline.weights.resolution import resolve_for_run
from spark_pipeline.weights.result import NodeResult, Proof, WeightsResult
from spark_pipeline.weights.revision import resolve
from spark_pipeline.weights.verify import observe, prove, seal

STAGE = "model_weights"
_COPIES = 2  # wrong twice on a peer is not bad luck


def plan(session: Session, revision: str | None = None) -> StagePlan:
    """What `ensure` would do, with its commands. Asks hub and nodes, changes nothing.

    Raises:
        HubError, RevisionNotFoundError, WeightsError, MachineError: what `ensure` would meet before its first byte.
    """
    manifest = resolve(session.deployment.model, revision or session.deployment.model.revision, session.state_dir)
    return printable(_decide(session, manifest, observe(session, manifest)))


def ensure(session: Session, *, revision: str | None = None, rehash: bool = False) -> WeightsResult:
    """Have the model's files on every node of the deployment, each proven there by its digest.

    Args:
        revision: the exact commit to have; default: what the declaration's branch means to this run.
        rehash: read every file again, whatever was proven before.

    Raises:
        RevisionNotFoundError, HubError: the hub has it not, refuses, or cannot be reached.
        VerificationError: bytes stay wrong although they were brought again.
        WeightsError: no room, no right to write, something in the way.
        MachineError: and its children, from the nodes.
    """
    hub = Hub.of(session.deployment.model)
    manifest = resolve_for_run(session, revision)
    reports = observe(session, manifest, rehash=rehash)
    planned = _decide(session, manifest, reports)
    found = printable(planned)
    for reason in found.reasons:
        session.progress(reason)
    results = {node.node: NodeResult(node.node) for node in planned.nodes}
    if planned.changes:
        _apply(session, planned, reports, results, rehash=rehash)
    return WeightsResult(
        record=_record(session, manifest, fresh=planned.changes),
        changed=planned.changes,
        plan=found,
        page_url=hub.page_url(manifest.repo, manifest.commit),
        nodes=tuple(results.values()),
        manifest=manifest,
        reports=reports,
    )


def _decide(session: Session, manifest: Manifest, reports: Mapping[str, Report]) -> WeightsPlan:
    """The plan; where it does not fit, the error also says what could go, as far as that can be found out."""
    try:
        return decide(manifest, _directory(session, manifest), reports)
    except NoRoomError as error:
        with suppress(SparkPipelineError):
            error.remedy = _what_could_go(session, manifest, without_room(manifest, reports)) or error.remedy
        raise


def _what_could_go(session: Session, manifest: Manifest, nodes: Sequence[str]) -> str:
    """What `weights prune` would remove on these nodes, and what was set aside there; '' where that is nothing.

    Raises:
        StateError, MachineError: who needs what cannot be found out.
    """
    found = list_revisions(session.project, session.fleet, session.connection, nodes)
    spare = [one for one in found if not one.needed_by and (one.repo, one.commit) != (manifest.repo, manifest.commit)]
    aside = [one for one in found if one.set_aside_bytes and one not in spare]
    lines: list[str] = []
    if spare:
        lines.append(f"spark-pipeline weights prune {session.fleet.name} --yes removes what no deployment needs:")
        lines += [f"{one.node}: {one.repo} at {one.commit[:12]}, {human_bytes(one.frees_bytes)}" for one in spare]
    if aside:
        lines.append("these hold files that were found wrong, to be looked at and removed:")
    for one in aside:
        place = f"{session.fleet.weights_dir}/{one.repo}/{one.commit}/.spark_pipeline/bad"
        lines.append(f"{one.node}: {place}, {human_bytes(one.set_aside_bytes)}")
    return "\n".join(lines)


def printable(planned: WeightsPlan) -> StagePlan:
    """The plan for people; pure. Digesting may find more files wrong; those are then brought in the same way."""
    return StagePlan(STAGE, planned.changes, planned.reasons(), tuple(_commands(planned)))


def _apply(
    session: Session, planned: WeightsPlan, reports: dict[str, Report], results: dict[str, NodeResult], *, rehash: bool
) -> None:
    """Read what is there, bring what is missing or wrong, read that too, write the markers. Adds to `results`, and puts
    how each node stands then into `reports`."""
    manifest = planned.manifest

    def add(more: Mapping[str, NodeResult]) -> None:
        for name, result in more.items():
            results[name] += result

    def learn(proofs: Mapping[str, Proof]) -> WeightsPlan:
        add({name: proof.result for name, proof in proofs.items()})
        reports.update({name: proof.report for name, proof in proofs.items()})
        return _decide(session, manifest, reports)

    planned = learn(prove(session, manifest, [node for node in planned.nodes if node.changes], rehash=rehash))
    if planned.head.bring:
        planned = learn({planned.head.node: download(session, manifest, planned.head)})
    for copies in range(_COPIES):
        if lacking := [peer for peer in planned.peers if peer.bring]:
            add(replicate(session, manifest, lacking, reports, is_first=copies == 0))
            planned = learn(prove(session, manifest, lacking))
    for peer in planned.peers:
        if peer.bring:
            raise VerificationError(
                "files arrive wrong on this node, again and again",
                node=peer.node,
                observed="\n".join(f"{bad.path}: {bad.actual}" for bad in reports[peer.node].set_aside),
                remedy="run again with rehash, which reads the head's files anew; then see this node's memory, disk "
                "and link: dmesg, smartctl, ethtool -S",
            )
    # Also where nothing changed: a head that gave files to a peer has them in its page cache, and gives that back.
    reports.update(seal(session, manifest, [node.node for node in planned.nodes]))
    for result in results.values():
        if result.seconds:
            session.progress(_told(result))


def _commands(planned: WeightsPlan) -> list[Command]:
    head = planned.head
    peers = [node for node in planned.peers if node.bring]
    changing = [node.node for node in planned.nodes if node.changes]
    commands = [Command(name, node_program.command("verify")) for name in changing]
    if head.bring:
        commands.append(Command(head.node, node_program.command("download")))
    if peers:
        commands.append(Command(head.node, node_program.command("serve")))
    commands += [Command(node.node, node_program.command("download")) for node in peers]
    if planned.changes:
        commands += [Command(node.node, node_program.command("seal")) for node in planned.nodes]
    return commands


def _record(session: Session, manifest: Manifest, *, fresh: bool) -> WeightsRecord:
    """Write what was proven; a repeat that changed nothing keeps the record of the run that did."""
    stored = store.read(record_path(session), WeightsRecord)
    record = WeightsRecord(
        repo=manifest.repo,
        revision=session.deployment.model.revision,
        commit=manifest.commit,
        directory=_directory(session, manifest),
        size_bytes=manifest.size_bytes,
        files=len(manifest.files),
        manifest_sha256=manifest.sha256,
        run_id=session.run_id,
        verified_at=datetime.now(UTC),
    )
    if stored and not fresh:
        same = stored.model_copy(update={"run_id": record.run_id, "verified_at": record.verified_at}) == record
        if same:
            return stored
    store.write(record_path(session), record)
    return record


def _directory(session: Session, manifest: Manifest) -> str:
    return f"{session.fleet.weights_dir}/{manifest.repo}/{manifest.commit}"


def _told(result: NodeResult) -> str:
    parts = [
        f"{what} {human_bytes(count)} in {human_seconds(seconds)}"
        for what, count, seconds in (
            ("downloaded", result.downloaded_bytes, result.download_seconds),
            ("copied", result.copied_bytes, result.copy_seconds),
            ("read", result.read_bytes, result.verify_seconds),
        )
        if count
    ]
    return f"[{result.node}] " + ", ".join([*parts, f"{result.verified_files} files proven in this run"])
