"""The real program of the node, run on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_pipeline.errors import LeaseHeldError, MachineError
from spark_pipeline.fleet import lease
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.lease import Lease
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline_tests.doubles import ScriptedHost

HEAD = LocalHost("head")


def hold(directory: Path, run: str, *, ttl: float = 30, host: Host = HEAD, said: list[str] | None = None):
    return lease.hold(
        host,
        fleet="sparks",
        owner=f"anna@laptop, run {run}",
        run_id=run,
        ttl_seconds=ttl,
        progress=(said if said is not None else []).append,
        directory=str(directory),
    )


def holder(directory: Path) -> str | None:
    found = lease.look(HEAD, directory=str(directory))
    return found.run_id if found else None


@pytest.fixture
def pass_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass, here and on the head, without waiting for it; meanwhile nobody renews (as if this machine had
    slept, or the network had been away)."""
    passed = 0.0

    def pass_seconds(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        path = tmp_path / "lease.json"
        written = json.loads(path.read_text())
        written["holders"] = {holder: end - seconds for holder, end in written["holders"].items()}
        path.write_text(json.dumps(written))

    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(Lease, "_beat", lambda self: None)
    return pass_seconds


def wait_until(true: Callable[[], bool]) -> None:
    """For what happens in the background: as long as it takes on a busy machine."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_it_is_held_inside_the_block_only(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with hold(tmp_path, "one") as held:
        held.check()
        assert holder(tmp_path) == "one"
    assert holder(tmp_path) is None


def test_it_is_given_back_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold(tmp_path, "one"):
        _ = 1 / 0

    assert holder(tmp_path) is None


def test_a_second_run_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path, "one"), pytest.raises(LeaseHeldError) as caught, hold(tmp_path, "two"):
        pytest.fail("two runs hold one lease")

    assert caught.value.node == "head"
    assert "anna@laptop, run one" in caught.value.observed
    assert "(run one) since 20" in caught.value.observed
    assert "after its end the lease is free" in caught.value.remedy


def test_the_refused_run_does_not_end_the_holders_lease(tmp_path: Path) -> None:
    with hold(tmp_path, "one"):
        with pytest.raises(LeaseHeldError), hold(tmp_path, "two"):
            pass
        assert holder(tmp_path) == "one"


def test_steps_of_one_run_share_it_until_the_last_has_ended(tmp_path: Path) -> None:
    with hold(tmp_path, "one"):
        with hold(tmp_path, "one"):
            pass
        assert holder(tmp_path) == "one", "the inner step ended, the outer one still works"
        with pytest.raises(LeaseHeldError), hold(tmp_path, "two"):
            pass


def test_the_lease_of_a_killed_holder_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_seconds: Callable[[float], None]
) -> None:
    monkeypatch.setattr(Lease, "_give_back", lambda self: None)
    with hold(tmp_path, "dead"):
        pass
    pass_seconds(29)
    assert holder(tmp_path) == "dead"

    pass_seconds(1)

    with hold(tmp_path, "next"):
        assert holder(tmp_path) == "next"


def test_it_is_renewed_while_the_holder_lives(tmp_path: Path) -> None:
    def ends() -> float:
        return max(json.loads((tmp_path / "lease.json").read_text())["holders"].values())

    with hold(tmp_path, "one", ttl=3) as held:
        taken_until = ends()
        wait_until(lambda: ends() > taken_until + 3)  # three beats, at least: past the time that it was taken for
        assert holder(tmp_path) == "one"
        held.check()


def test_a_holder_that_was_overtaken_learns_it_at_the_next_check(
    tmp_path: Path, pass_seconds: Callable[[float], None]
) -> None:
    with hold(tmp_path, "slept") as held:
        pass_seconds(31)
        with hold(tmp_path, "other"), pytest.raises(LeaseHeldError, match="lost") as caught:
            held.check()
        assert "run other" in caught.value.observed
        with pytest.raises(LeaseHeldError):
            held.check()  # for good: the other one changed the fleet meanwhile


def test_a_holder_that_was_silent_for_too_long_goes_on_when_nobody_came_between(
    tmp_path: Path, pass_seconds: Callable[[float], None]
) -> None:
    with hold(tmp_path, "silent") as held:
        pass_seconds(31)
        assert holder(tmp_path) is None, "others may take it"

        held.check()

        assert holder(tmp_path) == "silent"
        with pytest.raises(LeaseHeldError), hold(tmp_path, "other"):
            pass
    assert holder(tmp_path) is None


def test_a_holder_that_was_overtaken_by_a_run_that_has_ended_since_may_not_go_on(
    tmp_path: Path, pass_seconds: Callable[[float], None]
) -> None:
    with hold(tmp_path, "slept") as held:
        pass_seconds(31)
        with hold(tmp_path, "other"):
            pass

        with pytest.raises(LeaseHeldError, match="lost") as caught:
            held.check()

    assert "another run did since" in caught.value.observed


def test_giving_back_what_was_lost_does_not_end_the_others_lease(
    tmp_path: Path, pass_seconds: Callable[[float], None]
) -> None:
    slept = hold(tmp_path, "slept")
    slept.__enter__()
    pass_seconds(31)
    with hold(tmp_path, "other"):
        slept.__exit__(None, None, None)
        assert holder(tmp_path) == "other"


def test_one_of_many_at_the_same_moment_gets_it(tmp_path: Path) -> None:
    got: list[str] = []
    refused: list[str] = []
    everybody = threading.Barrier(6)
    done = threading.Barrier(6)

    def contend(run: str) -> None:
        everybody.wait()
        try:
            with hold(tmp_path, run):
                got.append(run)
                done.wait(20)
        except LeaseHeldError:
            refused.append(run)
            done.wait(20)

    threads = [threading.Thread(target=contend, args=(f"run{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(got), len(refused)) == (1, 5)


def test_a_torn_file_or_one_from_before_a_reboot_holds_nobody_up(tmp_path: Path) -> None:
    for text in ('{"owner": "x"', '{"boot_id": "another", "holders": {"a": 9e99}, "run_id": "old"}'):
        (tmp_path / "lease.json").write_text(text)

        with hold(tmp_path, "new"):
            assert holder(tmp_path) == "new"


def test_a_renewal_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    granted = '{"granted": true, "lease": null}'
    head = ScriptedHost("head").on("python3", "-IS", "-", "take", ..., stdout=granted)
    head.on("python3", "-IS", "-", "renew", ..., status=255, stderr="lost", times=1)
    head.on("python3", "-IS", "-", "renew", ..., stdout=granted, times=None)
    head.on("python3", "-IS", "-", "give_back", ..., stdout=granted)

    with hold(tmp_path, "one", ttl=0.3, host=head, said=said) as held:
        wait_until(lambda: any("try again" in line for line in said))
        held.check()

    head.finish()


def test_a_head_that_cannot_be_asked_is_an_error_not_a_free_lease(tmp_path: Path) -> None:
    head = ScriptedHost("head").on("python3", ..., status=127, stderr="python3: not found")

    with pytest.raises(MachineError, match="cannot be asked") as caught, hold(tmp_path, "one", host=head):
        pytest.fail("a lease that nobody gave")

    assert "python3" in caught.value.remedy
