"""What is said when the program on a node ends without a word of its own: real processes of other programs."""

from __future__ import annotations

import pytest

from spark_pipeline.errors import CommandFailedError, WeightsError
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.weights import node_program
from spark_pipeline.weights.node.messages import Request, Source
from spark_pipeline.weights.node_program import call

KILLED = "import os; os.kill(os.getpid(), {})"
REQUEST = Request("inspect", "/models", "a/b", "c" * 40, "", ())


def ended(request: Request = REQUEST) -> CommandFailedError:
    with pytest.raises(CommandFailedError, match="did not do its work") as caught:
        call(LocalHost("peer"), request, progress=print)
    assert caught.value.node == "peer"
    return caught.value


@pytest.mark.parametrize(
    ("program", "observed", "remedy"),
    [
        (KILLED.format(9), "killed by signal 9 (SIGKILL)", "out of memory: see dmesg"),
        (KILLED.format(7), "killed by signal 7 (SIGBUS)", "cut short"),
        (KILLED.format(15), "killed by signal 15 (SIGTERM)", "run again"),
        (KILLED.format(11), "killed by signal 11 (SIGSEGV)", "see dmesg"),
        ("1 / 0", "status 1: Traceback", "a fault of the pipeline: report it"),
        ("", "status 0: it printed nothing", "a fault of the pipeline: report it"),
        ("import no_such_module", "ModuleNotFoundError", "it needs python3 (3.10 or later)"),
        ("a word", "SyntaxError", "it needs python3 (3.10 or later)"),
    ],
)
def test_how_it_ended_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, program: str, observed: str, remedy: str
) -> None:
    monkeypatch.setattr(node_program, "program", lambda: f"{len(program)}\n{program}".encode())

    error = ended()

    assert observed in error.observed
    assert remedy in error.remedy
    assert ("needs python3" in error.remedy) is ("needs python3" in remedy)


def test_where_there_is_no_python_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_program, "command", lambda operation: ("python3-that-is-not-there", operation))
    assert "it needs python3" in ended().remedy


def test_an_address_that_the_head_does_not_have_is_one_of_the_fleets_declaration(tmp_path) -> None:
    source = Source("", "password")
    asked = Request("serve", str(tmp_path), "a/b", "c" * 40, "", (), source=source, listen_on="192.0.2.1")

    with pytest.raises(WeightsError, match=r"cannot listen on 192\.0\.2\.1") as caught:
        call(LocalHost("head"), asked, progress=print)

    assert (caught.value.node, "`fabric:`" in caught.value.remedy) == ("head", True)
