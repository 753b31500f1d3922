from __future__ import annotations

import threading
import time

import pytest

from spark_pipeline.errors import CommandFailedError, MachineError
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.fleet.parallel import each
from spark_pipeline_tests.unit.fleet.test_local_host import (
    interrupt_after,
    processes_with,
    seconds_nobody_else_sleeps,
)


def test_results_are_in_the_order_of_the_items_whoever_ends_first() -> None:
    def slow_first(name: str) -> int:
        time.sleep(0.2 if name == "a" else 0)
        return len(name)

    assert list(each(["a", "bb", "ccc"], slow_first).items()) == [("a", 1), ("bb", 2), ("ccc", 3)]


def test_items_are_worked_on_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    each(["a", "b"], lambda _: both.wait())


def test_no_items_are_no_work() -> None:
    assert each([], lambda name: 1 / 0) == {}


def test_the_first_error_in_order_comes_after_all_have_ended() -> None:
    ended: list[str] = []

    def work(name: str) -> None:
        if name == "slow":
            time.sleep(0.3)
        ended.append(name)
        if name != "good":
            raise MachineError(f"{name} failed", node=name)

    with pytest.raises(MachineError, match="slow failed") as caught:
        each(["slow", "quick", "good"], work)

    assert sorted(ended) == ["good", "quick", "slow"]
    assert str(caught.value).splitlines() == ["[slow] slow failed", "  also:     [quick] quick failed"]


def test_ctrl_c_ends_the_commands_of_every_thread() -> None:
    duration = seconds_nobody_else_sleeps()
    hosts: dict[str, Host] = {"a": LocalHost("a"), "b": LocalHost("b")}
    timer = interrupt_after(0.7)
    started = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        each(hosts, lambda name: hosts[name].run(["sleep", duration], timeout=60))

    timer.join()
    assert processes_with(duration) == []
    assert time.monotonic() - started < 30


def test_after_an_interrupted_round_the_hosts_can_clean_up() -> None:
    hosts: dict[str, Host] = {"a": LocalHost("a"), "b": LocalHost("b")}
    timer = interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        each(hosts, lambda name: hosts[name].run(["sleep", "60"], timeout=60))
    timer.join()

    assert each(hosts, lambda name: hosts[name].run(["echo", name], timeout=30).stdout) == {"a": "a\n", "b": "b\n"}


def test_rounds_within_rounds_are_given_up_together() -> None:
    duration = seconds_nobody_else_sleeps()
    host = LocalHost("a")
    timer = interrupt_after(0.7)

    with pytest.raises(KeyboardInterrupt):
        each(["x", "y"], lambda _: each(["1", "2"], lambda _: host.run(["sleep", duration], timeout=60)))

    timer.join()
    assert processes_with(duration) == []


def test_one_item_alone_fails_like_many() -> None:
    with pytest.raises(CommandFailedError):
        each(["only"], lambda name: LocalHost(name).run(["false"], timeout=30))
