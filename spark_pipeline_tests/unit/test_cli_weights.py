"""`spark-pipeline weights` as typed: a fleet of this machine alone, real files, the real program on them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_pipeline import text
from spark_pipeline.cli import main
from spark_pipeline.fleet.lease import hold
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.lab.hub_server import HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.weights import inventory, stage
from spark_pipeline.weights.inventory import Revision
from spark_pipeline_tests.unit.weights.conftest import LoopbackHub, local_project, open_here

# What is listed are blocks of the disk, our own notes included: a few of them make no tenth of a megabyte.
SAME = os.urandom(2_000_000)
OLD = {"config.json": b"{}", "model-1.bin": os.urandom(3_000_000), "same.bin": SAME}
NEW = {"config.json": b"{}", "model-1.bin": os.urandom(1_000_000), "same.bin": SAME}


@dataclass(frozen=True)
class Here:
    """Two revisions on one node; the deployment has the new one, nobody needs the old one."""

    models: Path
    old: str
    new: str

    @property
    def commits(self) -> set[str]:
        return {path.name for path in self.models.iterdir()}


@contextmanager
def two_revisions(folder: Path) -> Iterator[Here]:
    """And a command line that finds this project, and a lease that lies in a home of its own."""
    server = HubServer("127.0.0.1", 0, folder / "hub")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    hub = LoopbackHub(server)
    project = local_project(folder, hub)

    def have(files: Mapping[str, bytes]) -> str:
        commit = publish(server.root, hub.repo, files)
        with open_here(project, run_id=commit) as session:
            return stage.ensure(session).record.commit

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inventory, "_mounted", lambda host: {})  # whatever containers this machine has
        patched.setenv("HOME", str(folder))
        patched.setenv("SPARK_PIPELINE_ROOT", str(project.root))
        yield Here(folder / "models" / hub.repo, have(OLD), have(NEW))
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """For tests that change nothing: a home for all of them."""
    with two_revisions(tmp_path_factory.mktemp("kept")) as made:
        yield made


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with two_revisions(tmp_path) as made:
        yield made


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def document(*words: str) -> list[dict[str, Any]]:
    """Of a command with --json, which writes one document and nothing else."""
    return json.loads(done(*words, "--json"))


def test_list_shows_every_revision_with_its_size_and_who_needs_it(kept: Here) -> None:
    head, *rows = [line.split("  ") for line in done("weights", "list", "here").splitlines()]
    cells = {tuple(cell.strip() for cell in row if cell) for row in rows}
    assert [cell.strip() for cell in head if cell] == [
        "NODE", "REPOSITORY", "COMMIT", "FILES", "SIZE", "SHARED", "STATE", "NEEDED BY",
    ]  # fmt: skip
    assert cells == {
        ("head", "lab/weights", kept.old[:12], "3", "5.0 MB", "2.0 MB", "complete", "nobody"),
        ("head", "lab/weights", kept.new[:12], "3", "3.0 MB", "2.0 MB", "complete", "one: brought here last"),
    }


def test_list_as_json_has_the_same_facts_in_full(kept: Here) -> None:
    found = {one["commit"]: one for one in document("weights", "list", "here")}
    assert found.keys() == {kept.old, kept.new}
    old, new = found[kept.old], found[kept.new]
    assert (old["needed_by"], new["needed_by"]) == ([], ["one: brought here last"])
    assert old["shared_bytes"] == new["shared_bytes"] >= len(SAME)
    assert old["size_bytes"] >= 5_000_000


def test_prune_without_yes_says_what_would_go_and_changes_nothing(kept: Here) -> None:
    before = sorted((path, path.lstat().st_ctime_ns) for path in kept.models.rglob("*"))

    shown = done("weights", "prune", "here")

    assert kept.old[:12] in shown
    assert kept.new[:12] not in shown
    assert shown.endswith("at least 3.0 MB would go: run again with --yes\n")
    assert [one["commit"] for one in document("weights", "prune", "here")] == [kept.old]
    assert sorted((path, path.lstat().st_ctime_ns) for path in kept.models.rglob("*")) == before


def test_prune_with_yes_removes_what_nobody_needs_and_nothing_else(here: Here) -> None:
    shown = done("weights", "prune", "here", "--yes")

    assert shown.endswith("at least 3.0 MB removed\n")
    assert here.commits == {here.new}
    assert done("weights", "prune", "here", "--yes") == "every revision is needed: nothing to remove\n"
    assert here.commits == {here.new}


def test_prune_with_yes_as_json_is_still_one_document_and_the_rest_is_on_stderr(here: Here) -> None:
    result = run("weights", "prune", "here", "--yes", "--json")

    assert result.exit_code == 0
    assert [one["commit"] for one in json.loads(result.stdout)] == [here.old]
    assert f"[head] removed lab/weights at {here.old[:12]}" in result.stderr
    assert here.commits == {here.new}


def test_prune_leaves_a_fleet_alone_that_somebody_else_changes(kept: Here) -> None:
    with hold(LocalHost("head"), fleet="here", owner="anna@laptop", run_id="other", progress=print):
        result = run("weights", "prune", "here", "--yes")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "anna@laptop" in result.stderr
    assert kept.commits == {kept.old, kept.new}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("what", ["list", "prune"])
def test_an_unknown_fleet_is_answered_with_the_known_ones(what: str) -> None:
    result = run("weights", what, "heer")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "one of: here" in result.stderr


def revision(**fields: Any) -> Revision:
    facts: dict[str, Any] = {
        "node": "peer",
        "repo": "lab/weights",
        "commit": "c" * 40,
        "files": 3,
        "size_bytes": 5_000_000,
        "shared_bytes": 0,
        "complete": True,
        "needed_by": (),
    }
    return Revision(**facts | fields)


def test_nothing_on_any_node_is_a_sentence_and_not_an_empty_table() -> None:
    assert text.of_revisions([]) == "no model's files on any node"


def test_a_table_of_revisions_is_exactly_this() -> None:
    found = [revision(), revision(node="head", complete=False, shared_bytes=1_000_000, needed_by=("a: serves", "b: x"))]
    assert text.of_revisions(found).splitlines() == [
        "NODE  REPOSITORY   COMMIT        FILES  SIZE    SHARED  STATE         NEEDED BY",
        "peer  lab/weights  cccccccccccc  3      5.0 MB  -       complete      nobody",
        "head  lab/weights  cccccccccccc  3      5.0 MB  1.0 MB  not complete  a: serves, b: x",
    ]


@pytest.mark.parametrize(
    ("shared_bytes", "removed", "said"),
    [
        (0, False, "10.0 MB would go: run again with --yes"),
        (0, True, "10.0 MB removed"),
        (1_000_000, True, "at least 8.0 MB removed"),  # more, if what they share it with goes too
    ],
)
def test_what_goes_is_summed_up_without_what_stays(shared_bytes: int, removed: bool, said: str) -> None:
    spare = [revision(shared_bytes=shared_bytes), revision(node="head", shared_bytes=shared_bytes)]
    assert text.of_spare(spare, removed=removed).splitlines()[-1] == said
