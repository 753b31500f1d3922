"""One row of a table in the Dagster UI for each thing that a stage reports."""

from __future__ import annotations

from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.compatibility import describe
from spark_pipeline.compatibility.record import CandidateFacts
from spark_pipeline.image.strategy import Option
from spark_pipeline.weights.model_facts import ModelFacts
from spark_pipeline.weights.result import NodeResult

Row = dict[str, object]


def of_option(option: Option) -> Row:
    return {
        "image": option.candidate,
        "way": describe.way(option),
        "verdict": describe.state(option),
        "cost": option.cost,
        "why": option.why,
    }


def of_candidate(candidate: CandidateFacts) -> Row:
    verdict, engine = candidate.verdict, candidate.engine
    return {
        "image": candidate.declared,
        "verdict": verdict.kind.value if verdict else "not asked",
        "evidence": verdict.evidence.value if verdict else "",
        "why": verdict.why if verdict else candidate.against,
        "platform": candidate.platform,
        "installed_as": candidate.installed_as,
        "directory": candidate.directory,
        "entrypoint": " ".join(candidate.entrypoint),
        **(engine.versions() if engine else {}),
    }


def of_model(model: ModelFacts) -> Row:
    shown = model.model_dump(mode="json", exclude={"dtypes", "schema_version"})
    return {**shown, "architectures": ", ".join(model.architectures)}


def of_node(node: NodeResult) -> Row:
    row = {key: round(value, 2) if isinstance(value, float) else value for key, value in vars(node).items()}
    rates = {f"{name}_mb_per_second": round(rate, 1) for name, rate in node.megabytes_per_second.items()}
    return {**row, **rates, "repaired": ", ".join(bad.path for bad in node.repaired)}


def of_point(point: BenchmarkPoint) -> Row:
    return {
        "profile": point.profile,
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "concurrency": point.concurrency,
        "output_tokens_per_second": round(point.output_tokens_per_second, 2),
        "ttft_ms_p50": round(point.ttft_ms.p50, 1),
        "ttft_ms_p95": round(point.ttft_ms.p95, 1),
        "tpot_ms_p50": round(point.tpot_ms.p50, 2) if point.tpot_ms else "",
        "e2e_ms_p95": round(point.e2e_ms.p95, 1),
        "completed": point.completed,
        "failed": point.failed,
        "measured_at": point.started_at.strftime("%Y-%m-%d %H:%M UTC"),
    }


def series(point: BenchmarkPoint) -> dict[str, float | None]:
    """Numbers whose names stay the same from run to run: the UI draws a line through each."""
    name = f"{point.profile}_{point.input_tokens}in_{point.output_tokens}out_c{point.concurrency}"
    return {
        f"{name}_output_tokens_per_second": point.output_tokens_per_second,
        f"{name}_ttft_ms_p95": point.ttft_ms.p95,
        f"{name}_tpot_ms_p50": point.tpot_ms.p50 if point.tpot_ms else None,
    }
