"""The double that other tests lean on must itself be strict."""

from __future__ import annotations

import pytest

from spark_pipeline.errors import CommandFailedError, UnreachableError
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost


def test_a_command_that_was_not_foreseen_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"\[head\] not expected: rm -rf /"):
        ScriptedHost().on("ls").run(["rm", "-rf", "/"], timeout=1)


def test_a_command_that_never_came_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"never run: docker ps \.\.\."):
        ScriptedHost().on("docker", "ps", ...).finish()


def test_a_command_is_expected_once_unless_said_otherwise() -> None:
    host = ScriptedHost().on("date", stdout="1\n").on("date", stdout="2\n")

    assert [host.run(["date"], timeout=1).stdout for _ in range(2)] == ["1\n", "2\n"]
    with pytest.raises(AssertionError):
        host.run(["date"], timeout=1)


def test_three_dots_stand_for_any_words_anywhere() -> None:
    host = ScriptedHost().on("a", ..., "z", times=None)

    host.run(["a", "z"], timeout=1)
    host.run(["a", "b", "c", "z"], timeout=1)
    with pytest.raises(AssertionError):
        host.run(["a", "b"], timeout=1)


def test_a_status_that_is_not_0_raises_as_a_real_host_does() -> None:
    host = ScriptedHost("peer").on("false", status=1, stderr="no", times=2)

    assert host.run(["false"], timeout=1, check=False).status == 1
    with pytest.raises(CommandFailedError, match="false failed") as caught:
        host.run(["false"], timeout=1)
    assert caught.value.node == "peer"


def test_an_error_can_be_scripted() -> None:
    with pytest.raises(UnreachableError):
        ScriptedHost().on(..., error=UnreachableError("gone")).run(["x"], timeout=1)


def test_streams_give_lines_and_files_are_kept() -> None:
    lines: list[str] = []
    host = ScriptedHost().on("work", stdout="one\ntwo\n")

    assert host.stream(["work"], on_line=lines.append, timeout=1).stdout == ""
    host.put(b"x", "/file")

    assert lines == ["one", "two"]
    assert host.get("/file") == b"x"


def test_a_connection_asks_each_of_its_hosts() -> None:
    connection = ScriptedConnection([ScriptedHost(name).on("uname", stdout=name) for name in ("head", "peer")])

    assert connection.each(["head", "peer"], lambda host: host.run(["uname"], timeout=1).stdout) == {
        "head": "head",
        "peer": "peer",
    }
    connection.finish()
