"""The history page in a real browser: drawn, silent, and asking nobody for anything.

Marked `lab` for its Chromium, which `make test` installs as it does the lab's other parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from spark_pipeline.benchmark.report import render
from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline_tests.unit.benchmark.samples import NOON, point, weeks

pytestmark = pytest.mark.lab

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield running
        running.close()


@dataclass
class Opened:
    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


def opened(browser: Browser, directory: Path, text: str, *, dark: bool = False, width: int = 1280) -> Opened:
    file = directory / "benchmarks.html"
    file.write_text(text)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    seen = Opened(page)

    def asks(request: Request) -> None:
        if not request.url.startswith((file.as_uri(), "data:", "blob:")):
            seen.asked.append(request.url)

    page.on("console", lambda message: seen.complaints.append(message.text))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", asks)
    page.goto(file.as_uri())
    page.wait_for_function("document.querySelectorAll('figure').length === document.querySelectorAll('.plotly').length")
    return seen


def a_history() -> dict[str, tuple[BenchmarkPoint, ...]]:
    last = point(started_at=NOON + timedelta(weeks=6), image_fingerprint="9" * 64)
    alone = weeks(6, concurrency=1, requests=8, output_tokens_per_second=90.0)
    return {"tiny": (*alone, *weeks(6), last, *weeks(4, profile="chat")), "other": (point(deployment="other"),)}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_chart_is_drawn_without_a_complaint_or_a_request(browser: Browser, tmp_path: Path, dark: bool):
    seen = opened(browser, tmp_path, render(a_history()), dark=dark)
    assert seen.count("figure") == 3
    assert seen.count("figure .subplot.xy") == 3
    assert (seen.count("figure .subplot.x2y2"), seen.count("figure .subplot.x3y3")) == (3, 3)
    # smoke: one mark for each of 6 + 7 points in the throughput chart.
    assert seen.count("figure >> nth=0 >> .subplot.xy .scatterlayer .point") == 13
    assert seen.page.locator("figure .annotation-text", has_text="image").count() == 1
    assert seen.complaints == []
    assert seen.asked == []
    seen.page.close()


def test_text_can_be_read_on_its_background_in_both_schemes(browser: Browser, tmp_path: Path):
    def luminance(page: Page, expression: str) -> float:
        channels = page.evaluate(f"{expression}.match(/[0-9.]+/g).slice(0, 3).map(Number)")
        linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for dark in (False, True):
        seen = opened(browser, tmp_path, render(a_history()), dark=dark)
        back = luminance(seen.page, "getComputedStyle(document.body).backgroundColor")
        for selector, key in (("h2", "color"), (".soft", "color"), ("figure .x3tick text", "fill"), ("td", "color")):
            fore = luminance(seen.page, f"getComputedStyle(document.querySelector({selector!r})).{key}")
            contrast = (max(fore, back) + 0.05) / (min(fore, back) + 0.05)
            assert contrast >= 4.5, f"{selector}: {contrast:.1f}, dark: {dark}"  # WCAG AA
        seen.page.close()


def test_one_single_point_is_a_visible_mark_on_an_axis_of_hours(browser: Browser, tmp_path: Path):
    seen = opened(browser, tmp_path, render({"tiny": (point(),)}))
    assert seen.count("figure .subplot.xy .scatterlayer .point") == 1
    ticks = seen.page.locator("figure .x3tick text").all_text_contents()
    assert 3 <= len(ticks) <= 12
    assert "12:00" in " ".join(ticks)
    seen.page.close()


def test_hovering_a_point_shows_its_image_and_commit(browser: Browser, tmp_path: Path):
    seen = opened(browser, tmp_path, render(a_history()))
    mark = seen.page.locator("figure").first.locator(".subplot.xy .scatterlayer .point").nth(8)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    assert box
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    text = seen.page.locator(".hoverlayer .hovertext")
    text.wait_for(timeout=5000)
    assert "4f2ac91b07de" in (text.text_content() or "")
    assert "0f1e2d3c4b5a" in (text.text_content() or "")
    seen.page.close()


def test_a_narrow_screen_scrolls_tables_not_the_page(browser: Browser, tmp_path: Path):
    seen = opened(browser, tmp_path, render(a_history()), width=390)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.page.close()


def test_an_empty_history_opens_and_says_so(browser: Browser, tmp_path: Path):
    seen = opened(browser, tmp_path, render({"tiny": ()}))
    assert seen.page.get_by_text("Nothing has been measured yet").is_visible()
    assert seen.complaints == []
    seen.page.close()
