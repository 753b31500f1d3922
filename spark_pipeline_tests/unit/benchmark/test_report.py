from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

from spark_pipeline.benchmark.charts import changes, figure
from spark_pipeline.benchmark.history import append
from spark_pipeline.benchmark.report import render, write_report
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.unit.benchmark.samples import NOON, point, weeks

OTHER_IMAGE = "9bd03e55a1c4" + "0" * 52


def body(page: str) -> str:
    """The page without the script of the chart library."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def figures(page: str) -> list[dict[str, list[dict[str, object]]]]:
    return [json.loads(text) for text in raw_figures(page)]


def raw_figures(page: str) -> list[str]:
    return re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)


def test_each_deployment_and_profile_has_a_chart():
    page = render({"tiny": (*weeks(3), *weeks(3, profile="chat", input_tokens=1024)), "other": (point(),)})
    assert len(figures(page)) == 3
    assert '<section id="tiny">' in page
    assert '<section id="other">' in page


def test_a_line_for_each_concurrency_in_each_of_the_three_charts():
    drawn = figure([*weeks(3, concurrency=1, requests=8), *weeks(3)], ()).to_dict()
    by_axis = {axis: [trace for trace in drawn["data"] if trace["yaxis"] == axis] for axis in ("y", "y2", "y3")}
    # TTFT has two lines each: p95, and p50 dotted.
    assert [len(traces) for traces in by_axis.values()] == [2, 4, 2]
    assert list(by_axis["y"][0]["y"]) == [409.6] * 3
    assert by_axis["y"][0]["x"][0] == "2026-11-30 12:00:00"


def test_hovering_tells_what_was_measured():
    text = figure([point(image_digest="sha256:" + "ab" * 32)], ()).to_dict()["data"][0]["hovertext"][0]
    for words in ("4f2ac91b07de", "sha256:abababababab", "0f1e2d3c4b5a", "ray", "0.32.0+cpu", "12:00:00 UTC"):
        assert words in text


def test_points_measured_beside_other_requests_are_hollow():
    drawn = figure([point(other_requests=2), *weeks(2, concurrency=1)], ()).to_dict()
    symbols = [symbol for trace in drawn["data"] if trace["yaxis"] == "y" for symbol in trace["marker"]["symbol"]]
    assert sorted(symbol.endswith("-open") for symbol in symbols) == [False, False, True]


def test_a_change_of_image_and_of_commit_is_marked_where_it_first_shows():
    points = [
        *weeks(2),
        point(started_at=NOON + timedelta(weeks=2), image_fingerprint=OTHER_IMAGE),
        point(started_at=NOON + timedelta(weeks=3), image_fingerprint=OTHER_IMAGE, commit="b" * 40, backend="mp"),
    ]
    marks = changes(points)
    assert [(mark.at, mark.what) for mark in marks] == [
        (NOON + timedelta(weeks=2), ("image",)),
        (NOON + timedelta(weeks=3), ("model", "backend")),
    ]
    assert marks[0].details == ("image: 4f2ac91b07de → 9bd03e55a1c4",)
    assert len(figure(points, marks).to_dict()["layout"]["shapes"]) == 2
    assert changes(weeks(4)) == ()


def test_an_empty_history_says_so_and_what_to_do():
    page = render({"tiny": ()})
    assert "Nothing has been measured yet" in page
    assert "tiny/benchmark_results" in page
    assert not figures(page)


def test_values_cannot_become_markup():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    page = render(
        {"tiny": (point(run_id=evil, vllm_version=evil, serve_args=(evil,), image_declared=evil, profile=evil),)}
    )
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in body(page)
    assert "<" not in "".join(raw_figures(page))
    assert "<img" not in str(figures(page)[0]["data"][0]["hovertext"])


def test_nothing_that_is_not_a_number_is_shown():
    page = render({"tiny": (point(output_tokens=1, tpot_ms=None, itl_ms=None),)})
    assert not re.search(
        r"\b(nan|NaN|None|null|inf)\b", body(re.sub(r"<figure.*?</figure>", "", page, flags=re.DOTALL))
    )


def test_the_page_names_no_other_host():
    for found in re.findall(r'(?:src|href)="([^"]*)"', body(render({"tiny": tuple(weeks(2))}))):
        assert found.startswith(("data:", "#"))


def test_the_report_is_written_whole_and_the_same_history_gives_the_same_bytes(tmp_path: Path):
    declared = Project.load(Path(__file__).resolve().parents[3])
    project = Project(tmp_path, declared.fleets, declared.deployments, declared.profiles)
    append(project.benchmarks_file("tiny"), point())
    append(project.benchmarks_file("gone"), point(deployment="gone"))
    path = write_report(project)
    first = path.read_bytes()
    assert path == tmp_path / "data" / "reports" / "benchmarks.html"
    assert write_report(project).read_bytes() == first
    assert b'<section id="gone">' in first  # no longer declared, still history
    assert b"Not measured yet: qwen35_122b, tiny_qwen35" in first
    assert [file.name for file in path.parent.iterdir()] == ["benchmarks.html"]
