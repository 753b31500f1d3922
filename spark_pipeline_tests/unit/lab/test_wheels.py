"""Fetching the engine's wheels: what happens without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.wheels import fetching


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    path = tmp_path / "requirements.txt"
    path.write_text("# nothing has this\nno-such-distribution==1.0\n")
    return path


def test_a_wheel_that_cannot_be_had_is_said_in_pips_words(requirements: Path, tmp_path: Path) -> None:
    paths = LabPaths(cache=tmp_path / "cache", own=tmp_path / "cache")

    with pytest.raises(LabError) as caught, fetching(requirements, paths, print) as download:
        download.wait(print)

    assert "no-such-distribution==1.0" in caught.value.observed
    assert "PIP_EXTRA_INDEX_URL" in caught.value.remedy
    assert [path.suffix for path in (tmp_path / "cache/wheels").iterdir()] == [".log"]


def test_wheels_that_are_there_are_not_fetched_again(requirements: Path, tmp_path: Path) -> None:
    paths = LabPaths(cache=tmp_path / "cache", own=tmp_path / "cache")
    with fetching(requirements, paths, print) as download:
        folder = download.folder
    folder.mkdir()
    lines: list[str] = []

    with fetching(requirements, paths, lines.append) as again:
        assert again.wait(lines.append) == folder

    assert lines == []
