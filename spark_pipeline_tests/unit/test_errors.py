"""What a person reads of an error, in whatever process it was raised."""

from __future__ import annotations

import pickle

from spark_pipeline.errors import ALSO, MachineError


def test_what_else_went_wrong_is_shown_below_the_first_error() -> None:
    error = MachineError("no room", node="a", observed="1 GB\nfree", remedy="df -h")
    error.add_note(ALSO + str(MachineError("no link", node="b", remedy="ip link")))
    error.add_note("a note of somebody else")

    assert str(error) == (
        "[a] no room\n  observed: 1 GB\n            free\n  remedy:   df -h\n"
        "  also:     [b] no link\n              remedy:   ip link\n  also:     a note of somebody else"
    )


def test_an_error_crosses_processes_whole() -> None:
    error = MachineError("no room", node="a", observed="1 GB", remedy="df -h")
    error.add_note(ALSO + "[b] no link")

    read = pickle.loads(pickle.dumps(error))

    assert (type(read), str(read)) == (MachineError, str(error))
    assert "no link" in str(read)


def test_an_error_alone_has_no_such_line() -> None:
    assert str(MachineError("no room", node="a")) == "[a] no room"
