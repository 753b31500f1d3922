"""What the lab's hub holds from the start."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.lab.content import move_to_next, prepare_hub
from spark_pipeline.lab.hub_store import move_branch, read_refs, revisions
from spark_pipeline.lab.tiny_models import TINY, TINY_QWEN35


def test_two_revisions_of_each_model_and_main_at_the_first(tmp_path: Path) -> None:
    lines: list[str] = []

    published = {item.repo: item.commits for item in prepare_hub(tmp_path, lines.append)}

    assert list(published) == [TINY, TINY_QWEN35]
    for repo, commits in published.items():
        assert len(commits) == 2
        assert revisions(tmp_path, repo) == sorted(commits)
        assert read_refs(tmp_path, repo) == {"main": commits[0]}
    assert len(lines) == 2


def test_a_branch_that_moved_is_left_where_it_is(tmp_path: Path) -> None:
    tiny, _ = prepare_hub(tmp_path, print)
    move_branch(tmp_path, TINY, "main", tiny.commits[1])
    lines: list[str] = []

    assert prepare_hub(tmp_path, lines.append)[0] == tiny

    assert read_refs(tmp_path, TINY) == {"main": tiny.commits[1]}
    assert lines == []


def test_a_branch_moves_through_the_revisions_and_comes_back(tmp_path: Path) -> None:
    tiny, _ = prepare_hub(tmp_path, print)

    assert move_to_next(tmp_path, TINY) == tiny.commits[1]
    assert read_refs(tmp_path, TINY) == {"main": tiny.commits[1]}
    assert move_to_next(tmp_path, TINY) == tiny.commits[0]
