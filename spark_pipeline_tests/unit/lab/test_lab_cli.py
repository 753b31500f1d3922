"""`spark-pipeline lab`: an error is its text and status 1; progress never gets between the facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_pipeline.errors import LabError
from spark_pipeline.lab import cli
from spark_pipeline.lab.images import ImageTag
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.status import LabStatus, NodeStatus

HEAD = NodeStatus("head", "10.77.0.10", "192.168.200.12", "192.168.201.12", 7, True, True, "20.10.24")
UP = LabStatus((HEAD,), "http://h", True, "r", True, Path("/k"), "spark")


def test_an_error_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> LabStatus:
        raise LabError("this machine lacks 1 thing", observed="- not root", remedy="- sudo")

    monkeypatch.setattr(Lab, "up", refuse)
    result = CliRunner().invoke(cli.lab, ["up"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "this machine lacks 1 thing\n  observed: - not root\n  remedy:   - sudo\n"


def test_progress_of_up_goes_to_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # up fills the hub, which lies there

    def bring_up(_: Lab, nodes: int, progress: Callable[[str], None]) -> LabStatus:
        progress(f"starting {nodes}")
        return UP

    monkeypatch.setattr(Lab, "up", bring_up)
    result = CliRunner().invoke(cli.lab, ["up", "--nodes", "3"])
    assert result.exit_code == 0
    first, *others = result.stderr.splitlines()
    assert first.endswith(" s] starting 3")
    assert ["published in 2 revisions" in line for line in others] == [True, True]
    assert "10.77.0.10" in result.stdout


def test_a_branch_of_the_hub_is_moved_and_an_unknown_repository_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    moved = CliRunner().invoke(cli.lab, ["move", "lab/tiny"])
    assert (moved.exit_code, moved.stderr) == (0, "")
    assert moved.stdout.startswith("lab/tiny: main is now ")
    refused = CliRunner().invoke(cli.lab, ["move", "lab/nothing"])
    assert refused.exit_code == 1
    assert "remedy:   one of: lab/tiny, lab/tiny_qwen35" in refused.stderr


@pytest.mark.parametrize("nodes", ["0", "9", "two"])
def test_a_number_of_nodes_that_no_lab_has_is_refused(nodes: str) -> None:
    result = CliRunner().invoke(cli.lab, ["up", "--nodes", nodes])
    assert result.exit_code == 2
    assert "--nodes" in result.stderr


def test_the_replay_is_prepared_by_name_and_all_of_it_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "replay_image", lambda _lab, _say, name: ImageTag(f"{name}:built", "recipe"))

    one = CliRunner().invoke(cli.lab, ["replay", "vllm-node"])
    everything = CliRunner().invoke(cli.lab, ["replay"])

    assert (one.exit_code, one.stderr) == (0, "")
    first, second, image = one.stdout.splitlines()
    assert first.startswith("hub: lab/qwen35_122b at ")
    assert second.startswith("hub: lab/no_architectures at ")
    assert image == "head: vllm-node:built"
    assert everything.stdout.count("head: ") == 5
    assert CliRunner().invoke(cli.lab, ["replay", "vllm-other"]).exit_code == 2
