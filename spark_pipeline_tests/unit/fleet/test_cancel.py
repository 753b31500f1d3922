"""Taking back what was started is not stopped by a second interrupt."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

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
