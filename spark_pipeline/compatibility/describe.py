"""The report in words: for the plan, the terminal, the asset's metadata and the error. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_pipeline.compatibility.record import CandidateFacts, CompatibilityReport
from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.image.strategy import Judged, Option
from spark_pipeline.image.verdict import Kind
from spark_pipeline.weights.model_facts import ModelFacts

STAGE = "compatibility_report"


def plan(report: CompatibilityReport, *, pulls: bool) -> StagePlan:
    """As `spark-pipeline plan` prints it: facts, then every way with its verdict."""
    reasons = [
        of_model(report.model),
        *(layout.text() for layout in report.layouts),
        *(of_candidate(candidate) for candidate in report.candidates),
    ]
    waits = pulls and report.choice is None
    if waits:
        reasons.append("what is inside an image is known only after the pull")
    if report.problem and not (waits and report.fits):
        reasons.append(f"BLOCKED: {report.problem}. {report.remedy}")
    rows = [(o.candidate, way(o), state(o), o.cost, o.why) for o in report.options]
    return StagePlan(STAGE, waits, tuple(reasons), table=(("IMAGE", "WAY", "VERDICT", "COSTS", "WHY"), *rows))


def table(report: CompatibilityReport) -> str:
    """Every question and answer, a line each."""
    lines = [layout.text() for layout in report.layouts]
    lines += [of_candidate(candidate) for candidate in report.candidates]
    lines += [of_option(option) for option in report.options]
    return "\n".join(lines)


def of_model(model: ModelFacts) -> str:
    shares = ", ".join(f"{share.dtype} {human_bytes(share.size_bytes)}" for share in model.dtypes)
    parts = [
        f"{model.repo} at {model.commit[:12]}: {', '.join(model.architectures)}",
        f"{human_bytes(model.size_bytes)} by {model.size_evidence}" + (f" ({shares})" if shares else ""),
        model.quantization,
        f"written with transformers {model.transformers_version}" if model.transformers_version else "",
        f"{model.extra_head_layers} extra head layer(s) for speculation" if model.extra_head_layers else "",
    ]
    return "; ".join(part for part in parts if part)


def of_candidate(candidate: CandidateFacts) -> str:
    if candidate.engine is None:
        return f"{candidate.declared}: {candidate.against}"
    versions = ", ".join(f"{name} {version}" for name, version in candidate.engine.versions().items())
    verdict = candidate.verdict
    told = f"; {verdict.kind} ({verdict.evidence}): {verdict.why}" if verdict is not None else ""
    starts = f"; its entrypoint {' '.join(candidate.entrypoint)} is not run" if candidate.entrypoint else ""
    return f"{candidate.declared}: {versions}, {candidate.installed_as} at {candidate.directory}{starts}{told}"


def of_option(option: Option) -> str:
    return f"{option.candidate}, {way(option)}: {state(option)}: {option.why}"


def way(option: Option) -> str:
    """'model files grafted in from vllm-qwen35:latest'."""
    return f"{option.way} from {option.donor}" if option.donor else option.way.value


def state(option: Option) -> str:
    """'chosen', 'possible' or 'ruled out'."""
    return "chosen" if option.is_chosen else "possible" if option.possible else "ruled out"


def remedy(asked: Sequence[Judged], options: Sequence[Option]) -> str:
    """What the reader can do where no candidate can serve the model."""
    verdicts = {item.declared: item.verdict for item in asked if item.verdict is not None}
    for declared, verdict in verdicts.items():
        if verdict.serves:  # its verdict is not what stands in the way
            ruled_out = [option for option in options if option.candidate == declared and not option.possible]
            return "; ".join(dict.fromkeys(f"{option.way}: {option.why}" for option in ruled_out))
    if broken := [declared for declared, verdict in verdicts.items() if verdict.kind is Kind.BROKEN]:
        return f"{', '.join(broken)}: broken in itself: take another build of it, or name another image"
    known = [verdict.first_version for verdict in verdicts.values() if verdict.first_version]
    if known:
        return f"name an image with vLLM {known[0]} or later under image.candidates"
    return "name an image under image.candidates whose vLLM knows the architecture"
