"""data/reports/benchmarks.html: the history of every deployment's speed on one page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from spark_pipeline.benchmark.charts import Change, changes, figure
from spark_pipeline.benchmark.history import newest, read
from spark_pipeline.benchmark.page import Cell, Words, chart, facts, page, table
from spark_pipeline.benchmark.result import TOOL, BenchmarkPoint
from spark_pipeline.spec.project import Project
from spark_pipeline.spec.store import write_text

_TIME = "%Y-%m-%d %H:%M"

_WORDS = """<details><summary>What the words mean</summary><ul>
<li><b>Output tokens/s</b>: tokens generated for all requests together, per second of the whole point.</li>
<li><b>TTFT</b>, time to first token: from sending a request to its first streamed chunk.</li>
<li><b>TPOT</b>, time per output token: (end &minus; first token) / (output tokens &minus; 1), one value a request.</li>
<li><b>Inter-chunk</b>: gap between two streamed chunks. vLLM calls it inter-token latency; with speculative decoding
a chunk holds several tokens.</li>
<li><b>E2E</b>: from sending a request to its last chunk. <b>p50, p95</b>: half or 95 % of requests were faster.</li>
<li>Hollow marks: the engine answered other requests meanwhile. Dashed lines: image, model, backend or arguments
changed; point at their words.</li></ul></details>"""


def write_report(project: Project) -> Path:
    """Write the page from the history alone: the same history gives the same bytes. Returns its path.

    Raises:
        StateError: a history file holds a line of another version.
    """
    path = project.reports_dir / "benchmarks.html"
    write_text(path, render(read_all(project)))
    return path


def read_all(project: Project) -> dict[str, tuple[BenchmarkPoint, ...]]:
    """Points by deployment: declared ones in order of name, then those that are only history."""
    past = sorted(file.stem for file in project.benchmarks_file("any").parent.glob("*.jsonl"))
    names = dict.fromkeys([*sorted(project.deployments), *past])
    return {name: read(project.benchmarks_file(name)) for name in names}


def render(history: Mapping[str, tuple[BenchmarkPoint, ...]]) -> str:
    """The page as text. Pure."""
    measured = {name: points for name, points in history.items() if points}
    unmeasured = [name for name, points in history.items() if not points]
    total = sum(len(points) for points in measured.values())
    body = ["<h1>Benchmark history</h1>"]
    if not measured:
        body.append(_nothing(unmeasured))
    else:
        last = max(point.started_at for points in measured.values() for point in points)
        body += [
            f'<p class="soft">{_count(total, "point")} of {_count(len(measured), "deployment")}, newest '
            f"{last.strftime(_TIME)} UTC. Load from <code>{TOOL}</code> inside the serving container. "
            "All times are UTC.</p>",
            _summary(measured),
        ]
        if unmeasured:
            body.append(f'<p class="soft">Not measured yet: {escape(", ".join(unmeasured))}.</p>')
        body.append(_WORDS)
        body += [_section(name, points) for name, points in measured.items()]
    return page("Benchmark history", "\n".join(body))


def _nothing(names: list[str]) -> str:
    example = names[0] if names else "DEPLOYMENT"
    return (
        '<div class="nothing"><p><b>Nothing has been measured yet.</b></p>'
        f"<p>Materialize <code>{escape(example)}/benchmark_results</code>; its numbers then appear here.</p></div>"
    )


def _summary(measured: Mapping[str, tuple[BenchmarkPoint, ...]]) -> str:
    columns = (
        ("Deployment", ""), ("Serves", ""), ("Engine", ""), ("One request alone", "TTFT p50, ms"), ("", "TPOT p50, ms"),
        ("All together", "output tokens/s"), ("", "at concurrency"), ("Points", ""), ("Newest", "UTC"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for name, points in measured.items():
        last = max(points, key=lambda point: point.started_at)
        current = [point for point in newest(points) if point.spec_hash == last.spec_hash]
        alone = max(
            (point for point in current if point.concurrency == 1), key=lambda point: point.input_tokens, default=None
        )
        most = max(current, key=lambda point: point.output_tokens_per_second)
        rows.append((
            name,
            Words(f"{last.repo} @ {last.commit_short}", f"{last.image_declared} · {last.image_short}"),
            Words(f"vLLM {last.vllm_version}", f"{last.backend}, tensor {last.tensor}"),
            alone.ttft_ms.p50 if alone else None, alone.tpot_ms.p50 if alone and alone.tpot_ms else None,
            most.output_tokens_per_second, most.concurrency, len(points), last.started_at.strftime(_TIME),
        ))  # fmt: skip
    return table(columns, rows)


def _section(name: str, points: tuple[BenchmarkPoint, ...]) -> str:
    last = max(points, key=lambda point: point.started_at)
    marks = changes(points)
    parts = [f'<section id="{escape(name)}"><h2>{escape(name)}</h2>', _served(last)]
    for profile in dict.fromkeys(point.profile for point in points):
        own = [point for point in points if point.profile == profile]
        parts.append(f"<h3>{escape(_profile_title(profile, own))}</h3>")
        parts.append(chart(figure(own, marks), f"Speed of {name} over time, profile {profile}"))
    parts += ["<h3>Newest measurement of each point</h3>", _newest(points), _changes(marks), "</section>"]
    return "\n".join(parts)


def _profile_title(profile: str, points: list[BenchmarkPoint]) -> str:
    lengths = {(point.input_tokens, point.output_tokens) for point in points}
    if len(lengths) > 1:
        return f"Profile {profile}"
    ((input_tokens, output_tokens),) = lengths
    return f"Profile {profile}: {input_tokens:,} tokens in, {output_tokens:,} out"


def _served(point: BenchmarkPoint) -> str:
    versions = {
        "vLLM": point.vllm_version, "Ray": point.ray_version, "torch": point.torch_version,
        "transformers": point.transformers_version, "Python": point.python_version,
    }  # fmt: skip
    return facts((
        ("model", f"{point.repo} @ {point.commit}"),
        ("image", f"{point.image_declared}, content {point.image_short}"),
        ("digest", point.image_digest or "in no registry"),
        ("engine", ", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        ("layout", f"{point.backend}, tensor {point.tensor} x pipeline {point.pipeline} on {', '.join(point.nodes)} "
                   f"of {point.fleet}"),
        ("arguments", " ".join(point.serve_args) or "none"),
        ("generation", f"{point.generation} (spec {point.spec_hash})"),
    ))  # fmt: skip


def _newest(points: tuple[BenchmarkPoint, ...]) -> str:
    columns = (
        ("Profile", ""), ("In", "tokens"), ("Out", "tokens"), ("Concurrency", ""), ("Requests", ""),
        ("Output", "tokens/s"), ("TTFT", "p50, ms"), ("", "p95, ms"), ("TPOT", "p50, ms"), ("", "p95, ms"),
        ("Inter-chunk", "p95, ms"), ("E2E", "p50, ms"), ("", "p95, ms"), ("Measured", "UTC"),
    )  # fmt: skip
    rows = [
        (
            point.profile, point.input_tokens, point.output_tokens, point.concurrency, point.requests,
            point.output_tokens_per_second, point.ttft_ms.p50, point.ttft_ms.p95,
            point.tpot_ms.p50 if point.tpot_ms else None, point.tpot_ms.p95 if point.tpot_ms else None,
            point.itl_ms.p95 if point.itl_ms else None, point.e2e_ms.p50, point.e2e_ms.p95,
            point.started_at.strftime(_TIME),
        )
        for point in newest(points)
    ]  # fmt: skip
    return table(columns, rows)


def _changes(marks: tuple[Change, ...]) -> str:
    if not marks:
        return ""
    rows = [(mark.at.strftime(_TIME), Words("; ".join(mark.details))) for mark in reversed(marks)]
    return "<h3>What changed</h3>" + table((("Since", "UTC"), ("Change", "")), rows)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
