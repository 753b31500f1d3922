"""Results of stages as what the Dagster UI shows: a summary first, numbers that it plots over time, tables, commands.

Every number is finite: Dagster takes a NaN without a word, and the plots then show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from spark_pipeline.benchmark.stage import BenchmarkResult
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.stage import ClusterResult
from spark_pipeline.compatibility.stage import CompatibilityResult
from spark_pipeline.defs import rows
from spark_pipeline.errors import NoRoomError, SparkPipelineError, VerificationError, WeightsError
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.progress import human_bytes, human_seconds
from spark_pipeline.image.stage import ImageResult
from spark_pipeline.serving.stage import ServingResult
from spark_pipeline.weights.checks import COMPLETE, PROVEN, ROOM, Check, checks
from spark_pipeline.weights.result import WeightsResult

Value = str | int | float | None | dg.MetadataValue
_NOTHING_TO_DO = "nothing to do"


def of_compatibility(result: CompatibilityResult) -> dg.MaterializeResult:
    report, choice = result.report, result.choice
    assert choice is not None  # otherwise the stage raised
    model = report.model
    return _materialized(
        f"{choice.declared}, {choice.way}: chosen of {len(report.options)} ways",
        changed=False,
        duration_seconds=round(result.seconds, 2),
        repository=model.repo,
        commit=model.commit,
        architecture=choice.architecture,
        image=choice.declared,
        image_digest=choice.digest or "in no registry",
        image_fingerprint=choice.fingerprint,
        way=choice.way.value,
        model_bytes=model.size_bytes,
        options=table([rows.of_option(option) for option in report.options]),
        images=table([rows.of_candidate(candidate) for candidate in report.candidates]),
        layouts=table([{**vars(layout), "fits": layout.fits} for layout in report.layouts]),
        model=table([rows.of_model(model)]),
        dtypes=table([share.model_dump() for share in model.dtypes]),
        **_told(result.plan),
    )


def of_weights(result: WeightsResult) -> dg.MaterializeResult:
    record = result.record
    size = human_bytes(record.size_bytes)
    made = _materialized(
        f"{record.repo} at {record.commit[:12]}, {record.files} files, {size}: "
        + ("proven on every node" if result.changed else _NOTHING_TO_DO),
        changed=result.changed,
        repository=record.repo,
        revision=record.revision,
        commit=record.commit,
        page=dg.MetadataValue.url(result.page_url),
        directory=record.directory,
        size_bytes=record.size_bytes,
        files=record.files,
        manifest_sha256=record.manifest_sha256,
        downloaded_bytes=sum(node.downloaded_bytes for node in result.nodes),
        copied_bytes=sum(node.copied_bytes for node in result.nodes),
        verified_bytes=sum(node.verified_bytes for node in result.nodes),
        repaired_files=sum(len(node.repaired) for node in result.nodes),
        nodes=table([rows.of_node(node) for node in result.nodes]),
        **_told(result.plan),
    )
    return made._replace(check_results=[_check(check) for check in checks(result)])


def of_failed_weights(error: WeightsError) -> list[dg.AssetCheckResult]:
    """The check that does not hold, for which the stage failed. What the others would have said is not known then."""
    match error:
        case VerificationError():
            name = PROVEN
        case NoRoomError():
            name = ROOM
        case _ if error.node:  # its files could not be brought there
            name = COMPLETE
        case _:  # the hub did not say which files these are: no node was asked
            return []
    return [dg.AssetCheckResult(check_name=name, passed=False, description=str(error), metadata=of_error(error))]


def of_image(result: ImageResult) -> dg.MaterializeResult:
    record = result.record
    return _materialized(
        f"{record.declared}, vLLM {record.engine.vllm}, {human_bytes(record.size_bytes)}: "
        + ("the same on every node" if result.changed else _NOTHING_TO_DO),
        changed=result.changed,
        declared=record.declared,
        reference=record.reference,
        digest=record.digest or "in no registry",
        fingerprint=record.fingerprint,
        size_bytes=record.size_bytes,
        sent_bytes=sum(node.sent_bytes for node in result.nodes),
        engine=table([record.engine.versions()]),
        nodes=table([vars(node) for node in result.nodes]),
        **_told(result.plan),
    )


def of_cluster(result: ClusterResult) -> dg.MaterializeResult:
    generation = result.generation
    nodes = ", ".join(rank.node for rank in generation.ranks)
    did = f"joined in {human_seconds(result.seconds)}" if result.changed else f"runs already, {_NOTHING_TO_DO}"
    return _materialized(
        f"generation {generation.number} on {nodes} ({generation.backend.value}): {did}",
        changed=result.changed,
        duration_seconds=round(result.seconds, 2),
        generation=generation.number,
        **_identity(generation),
        ranks=table(
            [{"rank": r.rank, "node": r.node, "address": r.fabric, "container": r.container} for r in generation.ranks]
        ),
        members=table([member.model_dump(mode="json") for member in result.members]),
        **_told(result.plan.describe()),
    )


def of_serving(result: ServingResult) -> dg.MaterializeResult:
    record, completion = result.record, result.completion
    did = (
        f"ready after {human_seconds(record.ready_seconds)}" if result.changed else f"serves already, {_NOTHING_TO_DO}"
    )
    commands = "\n".join(f"{rank.node}$ {shell_text(rank.serve)}" for rank in record.generation.ranks if rank.serve)
    return _materialized(
        f"{record.model_id} at {record.url}: {did}",
        changed=result.changed,
        duration_seconds=round(result.seconds, 2),
        endpoint=dg.MetadataValue.url(f"{record.url}/v1"),
        model_id=record.model_id,
        ready_seconds=record.ready_seconds,
        generation=record.generation.number,
        completion=code(f"{completion.prompt}{completion.text}"),
        completion_tokens=completion.tokens,
        **_identity(record.generation),
        commands=code(commands),
    )


def of_benchmark(result: BenchmarkResult) -> dg.MaterializeResult:
    did = f"{result.measured} points measured" if result.changed else f"all measured before, {_NOTHING_TO_DO}"
    return _materialized(
        f"{len(result.points)} points: {did}",
        changed=result.changed,
        duration_seconds=round(result.seconds, 2),
        points=table([rows.of_point(point) for point in result.points]),
        history=dg.MetadataValue.path(result.history_file),
        **{key: value for point in result.points for key, value in rows.series(point).items()},
        **_told(result.plan),
    )


def of_dashboard(page: Path) -> dg.MaterializeResult:
    size = page.stat().st_size
    return dg.MaterializeResult(
        metadata={
            "summary": f"{page.name}, {human_bytes(size)}, opens without a network",
            "page": dg.MetadataValue.path(page),
            "size_bytes": size,
        }
    )


def of_error(error: SparkPipelineError) -> dict[str, dg.MetadataValue]:
    """The parts of an error; those that it lacks are left out."""
    parts = {
        "error": dg.MetadataValue.text(type(error).__name__),
        "node": dg.MetadataValue.text(error.node or ""),
        "observed": dg.MetadataValue.md(f"```\n{error.observed}\n```" if error.observed else ""),
        "remedy": dg.MetadataValue.md(error.remedy),
    }
    return {key: value for key, value in parts.items() if value.value}


def table(found: Sequence[Mapping[str, object]]) -> dg.MetadataValue | None:
    """None for no rows: Dagster cannot guess columns from nothing."""
    if not found:
        return None
    columns = list(dict.fromkeys(key for row in found for key in row))  # Dagster takes the first row's for all
    records = [
        {
            key: value if isinstance(value := row.get(key), str | int | float | bool) else str(value or "")
            for key in columns
        }
        for row in found
    ]
    return dg.MetadataValue.table([dg.TableRecord(record) for record in records])


def code(text: str) -> dg.MetadataValue:
    """Text as it is, in a block of its own."""
    fence = "```" if "```" not in text else "~~~~"
    return dg.MetadataValue.md(f"{fence}\n{text}\n{fence}")


def _materialized(summary: str, *, changed: bool, **facts: Value) -> dg.MaterializeResult:
    shown: dict[str, Value | bool] = {"summary": summary, "changed": changed, **facts}
    finite = {key: value for key, value in shown.items() if not isinstance(value, float) or math.isfinite(value)}
    return dg.MaterializeResult(metadata={key: value for key, value in finite.items() if value is not None})


def _check(check: Check) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=check.name,
        passed=check.passed,
        severity=dg.AssetCheckSeverity.WARN if check.is_warning else dg.AssetCheckSeverity.ERROR,
        description=check.remedy or None,
        metadata=dict(check.findings),
    )


def _identity(generation: Generation) -> dict[str, Value]:
    """What exactly runs."""
    return {
        "backend": generation.backend.value,
        "commit": generation.commit,
        "image": generation.image_declared,
        "image_digest": generation.image_digest or "in no registry",
        "image_fingerprint": generation.image_fingerprint,
        "engine": table([generation.engine]),
        "spec_hash": generation.spec_hash,
    }


def _told(plan: StagePlan) -> dict[str, Value]:
    return {
        "reasons": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in plan.reasons)),
        "commands": code("\n".join(command.text() for command in plan.commands)) if plan.commands else None,
    }
