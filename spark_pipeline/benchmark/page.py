"""The page around the charts: style, script, tables. One file that asks no network for anything.

Every text goes through `html.escape`; figures travel as JSON in which no `<` is left, so no value can close a tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from plotly import graph_objects
from plotly.offline import get_plotlyjs

# The browser itself refuses whatever would leave the file, should a script ever try.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b2127; --soft: #5d6873; --line: #dfe4e9; --card: #f6f8fa;
  --link: #0b62b8; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e4e8ec; --soft: #98a3ae; --line: #2c343c;
  --card: #1b2127; --link: #6db3f8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 28px 20px 60px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 27px; margin: 0; letter-spacing: -0.01em; } h2 { font-size: 21px; margin: 52px 0 4px; }
h3 { font-size: 16px; margin: 28px 0 4px; } p { margin: 4px 0 12px; } a { color: var(--link); }
.soft { color: var(--soft); }
code { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin: 10px 0 16px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 10px; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { background: var(--card); font-weight: 600; vertical-align: bottom; } tr:last-child td { border-bottom: 0; }
th small { display: block; color: var(--soft); font-weight: 400; } td small { display: block; color: var(--soft); }
td.words { white-space: normal; overflow-wrap: anywhere; min-width: 13em; }
.number { text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 10px 0; padding: 12px 16px;
  background: var(--card); border-radius: 8px; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 4px 0 0; min-height: 680px; } details { margin: 12px 0; } summary { cursor: pointer; }
.nothing { padding: 32px; text-align: center; background: var(--card); border-radius: 8px; margin-top: 24px; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 6px; } }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""

_SCRIPT = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function theme(layout) {
  const css = getComputedStyle(document.documentElement);
  const colour = name => css.getPropertyValue(name).trim();
  const themed = {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text")},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--text")},
    hoverlabel: {...layout.hoverlabel, bgcolor: colour("--card"), bordercolor: colour("--soft"),
      font: {color: colour("--text"), size: 12}}};
  for (const name of Object.keys(layout).filter(name => /^[xy]axis/.test(name)))
    themed[name] = {...layout[name], gridcolor: colour("--line"), linecolor: colour("--soft")};
  return themed;
}
function draw() {
  for (const chart of document.querySelectorAll("figure")) {
    const figure = JSON.parse(chart.querySelector("script").textContent);
    Plotly.react(chart.querySelector("div"), figure.data, theme(figure.layout),
      {responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]});
  }
}
draw();
dark.addEventListener("change", draw);
"""


def page(title: str, body: str) -> str:
    """A whole HTML document. `title` is text, `body` is HTML; plotly's 5 MB come along if it holds a chart."""
    scripts = f"<script>{get_plotlyjs()}</script>\n<script>{_SCRIPT}</script>\n" if "<figure" in body else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without it, browsers ask for /favicon.ico where the page is served.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"{scripts}</body>\n</html>\n"
    )


def chart(figure: graph_objects.Figure, label: str) -> str:
    """A figure, drawn by the page's script. `label`: what a screen reader says."""
    data = (figure.to_json() or "{}").replace("<", "\\u003c")
    return (
        f'<figure role="img" aria-label="{escape(label)}"><div></div>'
        f'<script type="application/json">{data}</script></figure>'
    )


@dataclass(frozen=True)
class Words:
    """A cell of text that may be broken into lines, with a smaller line below it."""

    text: str
    below: str = ""


Cell = str | int | float | Words | None


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]]) -> str:
    """Numbers to the right, text to the left, None as a dash.

    Args:
        columns: heading and unit (or '').
    """
    numeric = [any(isinstance(row[index], int | float) for row in rows) for index in range(len(columns))]
    head = "".join(
        f"<th{_align(right)}>{escape(name)}{f'<small>{escape(unit)}</small>' if unit else ''}</th>"
        for (name, unit), right in zip(columns, numeric, strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(_cell(value, right) for value, right in zip(row, numeric, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table></div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Name and value, one below the other."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs) + "</dl>"


def _align(right: bool) -> str:
    return ' class="number"' if right else ""


def _cell(value: Cell, right: bool) -> str:
    if isinstance(value, Words):
        below = f"<small>{escape(value.below)}</small>" if value.below else ""
        return f'<td class="words">{escape(value.text)}{below}</td>'
    return f"<td{_align(right)}>{escape(_text(value))}</td>"


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"
