"""Taking back what was started is not stopped by a second interrupt."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from spark_pipeline.fleet import cancel
from spark_pipeline.fleet.cancel import to_the_end


def test_work_is_done_whole_though_interrupts_arrive():
    done: list[str] = []

    def interrupt_twice() -> None:
        for _ in range(2):
            time.sleep(0.25)
            os.kill(os.getpid(), signal.SIGINT)

    def work() -> None:
        time.sleep(1)
        done.append("removed")

    threading.Thread(target=interrupt_twice).start()
    to_the_end(work)
    assert done == ["removed"]


def test_its_error_is_raised():
    def work() -> None:
        raise ValueError("not removed")

    with pytest.raises(ValueError, match="not removed"):
        to_the_end(work)


@pytest.mark.parametrize("is_started", [False, True])
def test_an_interrupt_while_it_begins_neither_loses_the_work_nor_doubles_it(
    monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    done: list[str] = []
    interrupts = [KeyboardInterrupt()]

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if is_started or not interrupts:
                super().start()
            if interrupts:
                raise interrupts.pop()

    monkeypatch.setattr(cancel.threading, "Thread", Interrupted)
    to_the_end(lambda: done.append("removed"))

    assert done == ["removed"]
    assert not interrupts


def test_without_a_thread_to_be_had_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class None_(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cancel.threading, "Thread", None_)
    with pytest.raises(RuntimeError, match="can't start"):
        to_the_end(lambda: None)
