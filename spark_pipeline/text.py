"""Facts as text for a person, or as one JSON document: what the command line and the demo print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python

from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.progress import human_bytes

if TYPE_CHECKING:  # these bring paramiko and pandas along
    from spark_pipeline.benchmark.result import BenchmarkPoint
    from spark_pipeline.compatibility.probe import ProbeReport
    from spark_pipeline.fleet.docker import Container
    from spark_pipeline.fleet.facts import NodeFacts
    from spark_pipeline.fleet.known_hosts import PinnedKey
    from spark_pipeline.serving.status import DeploymentStatus
    from spark_pipeline.weights.inventory import Revision


def as_json(facts: object) -> str:
    """Dataclasses, records and lists of them as one document."""
    return json.dumps(to_jsonable_python(facts), indent=2, ensure_ascii=False)


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Left-aligned, two blanks between; the first row is the head."""
    texts = [["-" if cell in (None, "") else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def of_keys(keys: Sequence[PinnedKey]) -> str:
    head = ("NODE", "KEY", "FINGERPRINT", "STATE")
    return columns([head, *((key.node, key.key_type, key.fingerprint, key.state) for key in keys)])


def of_facts(nodes: Sequence[NodeFacts]) -> str:
    return "\n\n".join(_of_node(node) for node in nodes)


def _of_node(node: NodeFacts) -> str:
    docker = f"{node.docker_version}, {human_bytes(node.docker_free_bytes or 0)} free at {node.docker_root}"
    links = [
        f"{item.name} {' '.join(item.ipv4) or 'no address'} mtu {item.mtu}{'' if item.carrier else ', no carrier'}"
        for item in node.interfaces
        if item.name != "lo"
    ]
    hcas = [
        f"{hca.device} on {hca.netdev}, {'active' if hca.active else 'down'}, RoCE v2 GID {hca.gid_index}"
        for hca in node.infiniband
    ]
    memory = f"{human_bytes(node.memory_available_bytes)} of {human_bytes(node.memory_total_bytes)} available"
    rows = [
        ("machine", f"{node.hostname}, {node.architecture}, {node.cores} cores, kernel {node.kernel}"),
        ("memory", memory),
        ("accelerator", f"{node.gpu.name}, driver {node.gpu.driver}" if node.gpu else "none"),
        ("weights disk", f"{human_bytes(node.weights_free_bytes)} free"),
        ("docker", f"not usable: {node.docker_problem}" if node.docker_problem else docker),
        ("login", f"{node.user} ({node.uid}), groups {' '.join(node.groups)}"),
        *(("link", link) for link in links),
        *(("rdma", hca) for hca in hcas),
    ]
    return f"{node.node}\n" + "\n".join(f"  {what:<13}{value}" for what, value in rows)


def of_plans(deployment: str, plans: Sequence[StagePlan]) -> str:
    return "\n\n".join(_of_plan(deployment, plan) for plan in plans)


def _of_plan(deployment: str, plan: StagePlan) -> str:
    state = "changes" if plan.changes else "nothing to do"
    reasons = [f"  - {reason}" for reason in plan.reasons]
    rows = [f"  {line}" for line in columns(plan.table).splitlines()] if plan.table else []
    commands = [f"  {item.text()}" for item in plan.commands]
    return "\n".join([f"{deployment}/{plan.stage}: {state}", *reasons, *rows, *commands])


def of_probe(report: ProbeReport) -> str:
    from spark_pipeline.compatibility import describe  # not before it is needed: `check` answers at once

    image, answer, engine = report.image, report.answer, report.answer.engine
    verdict, model = image.verdict, report.model
    registry = answer.registry
    known = registry.problem or f"{len(registry.architectures)} architectures in its registry"
    rows = [
        ("image", f"{image.platform}, {human_bytes(image.size_bytes)}, fingerprint {image.fingerprint[:16]}"),
        ("digest", image.digest or "in no registry"),
        ("starts", f"{' '.join((*image.entrypoint, *image.command)) or 'nothing of its own'} (never run by us)"),
        ("user", f"{image.user or 'root'}, in {image.working_dir or '/'}"),
        ("inside", ", ".join(f"{name} {version}" for name, version in engine.versions().items())),
        ("vllm", f"{answer.installed_as} at {answer.directory}, under {answer.python}; {known}"),
        ("nodes", "knows --nnodes" if engine.supports_nnodes else "does not know --nnodes"),
        ("requires", "; ".join(answer.requirements) or "not declared"),
        *((("model", describe.of_model(model)),) if model else ()),
        *((("verdict", f"{verdict.kind} ({verdict.evidence}): {verdict.why}"),) if verdict else ()),
        *((("error", verdict.error),) if verdict and verdict.error else ()),
    ]
    head = f"{image.declared} on {report.node} of fleet {report.fleet}"
    return f"{head}\n" + "\n".join(f"  {what:<9}{value}" for what, value in rows)


def of_statuses(found: Sequence[DeploymentStatus]) -> str:
    if not found:
        return "nothing was deployed from here yet"
    return "\n\n".join(_of_status(item) for item in found)


def _of_status(status: DeploymentStatus) -> str:
    if not status.ranks:
        return f"{status.deployment}: no container on any node"
    answers = f"answers as {', '.join(status.answers)}" if status.answers else "does not answer"
    head = ("NODE", "CONTAINER", "STATE", "IMAGE", "REVISION", "SINCE")
    rows = [
        (
            rank.node,
            rank.container,
            rank.state,
            rank.image_fingerprint.removeprefix("sha256:")[:12],
            rank.revision[:12],
            rank.started_at[:19],
        )
        for rank in status.ranks
    ]
    return f"{status.deployment}: {status.url or 'no endpoint on record'}, {answers}\n{columns([head, *rows])}"


def of_removed(deployment: str, removed: Sequence[Container]) -> str:
    if not removed:
        return f"{deployment}: nothing was running"
    return "\n".join(f"removed {container.name} on {container.node}" for container in removed)


def of_revisions(found: Sequence[Revision]) -> str:
    if not found:
        return "no model's files on any node"
    head = ("NODE", "REPOSITORY", "COMMIT", "FILES", "SIZE", "SHARED", "STATE", "NEEDED BY")
    rows = [
        (
            one.node,
            one.repo,
            one.commit[:12],
            one.files,
            human_bytes(one.size_bytes),
            human_bytes(one.shared_bytes) if one.shared_bytes else "-",
            "complete" if one.complete else "not complete",
            ", ".join(one.needed_by) or "nobody",
        )
        for one in found
    ]
    return columns([head, *rows])


def of_spare(spare: Sequence[Revision], *, removed: bool) -> str:
    if not spare:
        return "every revision is needed: nothing to remove"
    at_least = "at least " if any(one.shared_bytes for one in spare) else ""
    total = at_least + human_bytes(sum(one.frees_bytes for one in spare))
    return f"{of_revisions(spare)}\n{total} " + ("removed" if removed else "would go: run again with --yes")


def of_history(points: Sequence[BenchmarkPoint]) -> str:
    if not points:
        return "nothing was measured yet"
    head = (
        "MEASURED (UTC)",
        "DEPLOYMENT",
        "PROFILE",
        "IN",
        "OUT",
        "CONCURRENCY",
        "OUTPUT TOK/S",
        "TTFT P95 MS",
        "TPOT P50 MS",
        "IMAGE",
        "COMMIT",
    )
    rows = [
        (
            point.started_at.strftime("%Y-%m-%d %H:%M:%S"),
            point.deployment,
            point.profile,
            point.input_tokens,
            point.output_tokens,
            point.concurrency,
            f"{point.output_tokens_per_second:.1f}",
            f"{point.ttft_ms.p95:.1f}",
            f"{point.tpot_ms.p50:.2f}" if point.tpot_ms else "",
            point.image_short,
            point.commit_short,
        )
        for point in sorted(points, key=lambda point: point.started_at)
    ]
    return columns([head, *rows])
