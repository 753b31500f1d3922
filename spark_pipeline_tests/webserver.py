"""Dagster's UI as a person starts it, on a free port of loopback; and the README's picture of its asset graph.

python -m spark_pipeline_tests.webserver docs/asset_graph.png     (make picture)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from playwright.sync_api import FloatRect, sync_playwright

REPOSITORY = Path(__file__).parents[1]
_START_SECONDS = 180  # the definitions load in a process of their own; a busy machine takes its time
# Left of it is navigation, above it a search field.
_CANVAS: FloatRect = {"x": 545, "y": 130, "width": 1200, "height": 1070}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Webserver:
    """A running one."""

    url: str

    def ask(self, query: str) -> dict:
        """The `data` of a GraphQL answer."""
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with _DIRECT.open(request, timeout=60) as answer:
            content = json.load(answer)
        assert "errors" not in content, content["errors"]
        return content["data"]


@contextmanager
def webserver(
    home: Path, cwd: Path, program: Sequence[str] = ("dagster-webserver",), **environment: str
) -> Iterator[Webserver]:
    """Serve the repository's workspace.yaml from `cwd`, with `home` as DAGSTER_HOME; ended with all its children.

    Args:
        program: `("dagster", "dev")` brings the daemon along, and so sensors and the run queue.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    executable = str(Path(sys.executable).with_name(program[0]))
    workspace = str(REPOSITORY / "workspace.yaml")
    argv = [executable, *program[1:], "--workspace", workspace, "--host", "127.0.0.1", "--port", str(port)]
    variables = os.environ | {"DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"} | environment
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Dagster handles SIGTERM as it finds SIGINT handled; where that is ignored, nothing ends it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield _ready(f"http://127.0.0.1:{port}", process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    finally:
        with suppress(ProcessLookupError):  # what it started and left behind
            os.killpg(process.pid, signal.SIGKILL)


def _ready(url: str, process: subprocess.Popen[bytes], log: IO[str]) -> Webserver:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with _DIRECT.open(f"{url}/server_info", timeout=5):
                return Webserver(url)
        except OSError:
            time.sleep(0.3)
    log.seek(0)
    raise AssertionError(f"the webserver did not start:\n{log.read()[-2000:]}")


def draw_asset_graph(server: Webserver, groups: list[str], picture: Path) -> str:
    """A picture of all groups, unfolded, as the UI draws them; the words that stand on the page."""
    program = shutil.which("chromium")
    assert program, "Chromium is missing: apt-get install chromium"
    unfolded = quote(",".join(f"global@global:{group}" for group in groups), safe="")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1800, "height": 1300}, device_scale_factor=1.5)
        page.goto(f"{server.url}/asset-groups?expanded={unfolded}", timeout=120_000)
        page.locator("svg").get_by_text("serving_endpoint").first.wait_for(timeout=120_000)
        page.wait_for_timeout(3000)  # the graph glides into place, and states of assets come in
        page.screenshot(path=picture, clip=_CANVAS)
        words = page.locator("body").inner_text()
        browser.close()
    return words


if __name__ == "__main__":
    from spark_pipeline.spec.project import Project

    with webserver(REPOSITORY, REPOSITORY) as running:
        draw_asset_graph(running, [*Project.load(REPOSITORY).deployments, "reports"], Path(sys.argv[1]))
