"""A deployment's history as plotly figures: pure, from points to figures. Colours of text and grid are the page's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from itertools import pairwise

from plotly import graph_objects
from plotly.subplots import make_subplots

from spark_pipeline.benchmark.result import BenchmarkPoint

# Told apart on white and on near-black, and by people who see fewer colours; the marker's form says it again.
_COLOURS = ("#3987d8", "#df6420", "#1d9e78", "#b565bd", "#c79210", "#76869a")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_MARK_COLOUR = "#7c8894"
_TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Change:
    """From this measurement on, something else was measured.

    Args:
        what: 'image', 'model', 'backend', 'layout', 'arguments'.
        details: 'image 0a1b2c -> 3d4e5f', one for each of `what`.
    """

    at: datetime
    what: tuple[str, ...]
    details: tuple[str, ...]


def changes(points: Sequence[BenchmarkPoint]) -> tuple[Change, ...]:
    """Where the measured thing changed, in order of time."""
    found: list[Change] = []
    ordered = sorted(points, key=lambda point: point.started_at)
    for before, after in pairwise(ordered):
        old, new = _identity(before), _identity(after)
        what = tuple(name for name in old if old[name] != new[name])
        if what:
            details = tuple(f"{name}: {old[name]} → {new[name]}" for name in what)
            found.append(Change(after.started_at, what, details))
    return tuple(found)


def figure(points: Sequence[BenchmarkPoint], marks: Sequence[Change]) -> graph_objects.Figure:
    """Speed over time of one profile: three charts above each other on one time axis, a line for each shape."""
    drawn = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        subplot_titles=(
            "Output, tokens per second · higher is better",
            "Time to first token, ms · p95, dotted: p50 · lower is better",
            "Time per output token, ms · p50 · lower is better",
        ),
    )
    by_shape: dict[tuple[object, ...], list[BenchmarkPoint]] = {}
    for point in sorted(points, key=lambda point: (point.concurrency, point.input_tokens, point.started_at)):
        by_shape.setdefault(point.shape, []).append(point)
    lengths = {(point.input_tokens, point.output_tokens) for point in points}
    for index, series in enumerate(by_shape.values()):
        style = _Style(_COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)])
        name = _series_name(series[0], with_lengths=len(lengths) > 1)
        drawn.add_trace(_line(series, name, style, lambda p: p.output_tokens_per_second, "tokens/s", legend=True), 1, 1)
        drawn.add_trace(_line(series, name, style, lambda p: p.ttft_ms.p50, "ms TTFT p50", dotted=True), 2, 1)
        drawn.add_trace(_line(series, name, style, lambda p: p.ttft_ms.p95, "ms TTFT p95"), 2, 1)
        if series[0].tpot_ms is not None:
            drawn.add_trace(
                _line(series, name, style, lambda p: p.tpot_ms.p50 if p.tpot_ms else None, "ms per token"), 3, 1
            )
    _lay_out(drawn, points)
    _draw_marks(drawn, marks, *_span(points))
    return drawn


@dataclass(frozen=True)
class _Style:
    colour: str
    marker: str


def _identity(point: BenchmarkPoint) -> dict[str, str]:
    return {
        "image": point.image_short,
        "model": f"{point.repo}@{point.commit_short}",
        "backend": str(point.backend),
        "layout": f"tensor {point.tensor} x pipeline {point.pipeline} on {', '.join(point.nodes)}",
        "arguments": " ".join((*point.serve_args, f"--max-model-len {point.max_model_len or 'model'}")),
    }


def _series_name(point: BenchmarkPoint, *, with_lengths: bool) -> str:
    lengths = f"{point.input_tokens} in, {point.output_tokens} out, " if with_lengths else ""
    return f"{lengths}concurrency {point.concurrency} ({point.requests} requests)"


def _line(
    series: Sequence[BenchmarkPoint],
    name: str,
    style: _Style,
    value: Callable[[BenchmarkPoint], float | None],
    unit: str,
    *,
    dotted: bool = False,
    legend: bool = False,
) -> graph_objects.Scatter:
    return graph_objects.Scatter(
        x=[point.started_at.strftime(_TIME) for point in series],
        y=[value(point) for point in series],
        name=name,
        legendgroup=name,
        showlegend=legend,
        mode="lines+markers",
        line={"color": style.colour, "width": 1.2 if dotted else 2, "dash": "dot" if dotted else "solid"},
        marker={
            "symbol": [style.marker + ("" if _undisturbed(point) else "-open") for point in series],
            "size": 4 if dotted else 9,
        },
        hovertext=[_hover(point, value(point), unit) for point in series],
        hoverinfo="text",
    )


def _undisturbed(point: BenchmarkPoint) -> bool:
    return not point.other_requests


def _hover(point: BenchmarkPoint, value: float | None, unit: str) -> str:
    lines = [
        f"<b>{0.0 if value is None else value:,.2f} {unit}</b>",
        f"{point.started_at.strftime(_TIME)} UTC",
        f"{point.input_tokens} in, {point.output_tokens} out, concurrency {point.concurrency}",
        f"image {escape(point.image_declared)} · {escape(point.image_short)}",
        f"model {escape(point.repo)} @ {escape(point.commit_short)}",
        f"vLLM {escape(point.vllm_version)} · {point.backend} · generation {point.generation}",
        f"run {escape(point.run_id)} · seed {point.seed}",
    ]
    if point.image_digest:
        lines.insert(4, f"digest {escape(point.image_digest[:19])}")
    if not _undisturbed(point):
        lines.append(f"beside {point.other_requests} requests of others")
    return "<br>".join(lines)


def _span(points: Sequence[BenchmarkPoint]) -> tuple[datetime, datetime]:
    """The time axis' ends: some hours at least: one run alone would become an axis of milliseconds."""
    first = min(point.started_at for point in points)
    last = max(point.started_at for point in points)
    margin = max((last - first) * 0.04, timedelta(hours=3))
    return first - margin, last + margin


def _lay_out(drawn: graph_objects.Figure, points: Sequence[BenchmarkPoint]) -> None:
    first, last = _span(points)
    drawn.update_layout(
        template="none",
        height=680,
        margin={"l": 64, "r": 20, "t": 104, "b": 44},
        legend={"orientation": "h", "x": 0, "y": 1.09, "yanchor": "bottom", "itemsizing": "constant"},
        hoverlabel={"align": "left"},
        hovermode="closest",
    )
    drawn.update_xaxes(type="date", range=[first.strftime(_TIME), last.strftime(_TIME)], showline=True, zeroline=False)
    # From zero: noise must not look like a trend.
    drawn.update_yaxes(rangemode="tozero", zeroline=False, separatethousands=True, nticks=6)
    drawn.update_xaxes(title_text="UTC", title_standoff=4, row=3, col=1)
    drawn.update_annotations(x=0, xanchor="left", font_size=13)


def _draw_marks(drawn: graph_objects.Figure, marks: Sequence[Change], first: datetime, last: datetime) -> None:
    """A line through all three charts at each change, with a word above it where there is room for one."""
    room = (last - first) * 0.08
    said: datetime | None = None
    for mark in marks:
        if not first <= mark.at <= last:
            continue
        when = mark.at.strftime(_TIME)
        drawn.add_shape(
            type="line", x0=when, x1=when, y0=0, y1=1.045, xref="x", yref="paper",
            line={"color": _MARK_COLOUR, "width": 1, "dash": "dash"}, layer="below",
        )  # fmt: skip
        if said is None or mark.at - said > room:
            said = mark.at
            drawn.add_annotation(
                x=when, y=1.045, xref="x", yref="paper", yanchor="bottom", xanchor="center", showarrow=False,
                text=escape(" + ".join(mark.what)), font={"size": 11, "color": _MARK_COLOUR},
                hovertext="<br>".join([f"{when} UTC", *(escape(detail) for detail in mark.details)]),
            )  # fmt: skip
