"""The right to change a fleet: one run at a time, whoever it is (UI, schedule, command line, another machine).

It lies on the head, so it guards the machines and not one checkout. It has a time to live and is renewed while its
holder lives: a killed process frees it by itself. A holder that was silent for longer (a broken network) goes on when
nobody took the lease meanwhile. The node's side is lease_program.py.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files

from spark_pipeline.errors import LeaseHeldError, MachineError, SparkPipelineError
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress, human_seconds

DIRECTORY = "~/.spark_pipeline"
_ASK_SECONDS = 30.0


@dataclass(frozen=True)
class Held:
    """A lease as it stands on the head.

    Args:
        owner: who, in words for a person.
        since: when that run took it, by the head's clock, UTC.
        left_seconds: until it expires by itself when it is not renewed.
    """

    fleet: str
    owner: str
    run_id: str
    since: str
    left_seconds: float


@dataclass(frozen=True)
class _Request:
    fleet: str
    owner: str
    run_id: str
    holder: str
    ttl_seconds: float


class Lease:
    """A lease that is held, and renewed in the background."""

    def __init__(self, host: Host, request: _Request, directory: str, progress: Progress) -> None:
        self._host = host
        self._request = request
        self._directory = directory
        self._progress = progress
        self._good_until = 0.0
        self._lost: LeaseHeldError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def run_id(self) -> str:
        """The run that holds it."""
        return self._request.run_id

    def check(self) -> None:
        """Call before each change of the fleet; costs nothing while renewing works.

        Raises:
            LeaseHeldError: it was lost: somebody else may be changing the fleet.
            MachineError: it is about to expire and the head cannot be asked.
        """
        if self._lost is None and time.monotonic() > self._good_until - self._request.ttl_seconds / 3:
            self._renew()
        if self._lost is not None:
            raise self._lost

    def _take(self) -> None:
        asked = time.monotonic()
        granted, held = _ask(self._host, "take", self._directory, self._request)
        if not granted:
            raise _held_error(self._host, held, f"fleet {self._request.fleet} is being changed by somebody else")
        self._good_until = asked + self._request.ttl_seconds

    def _renew(self) -> None:
        with self._lock:
            asked = time.monotonic()
            granted, held = _ask(self._host, "renew", self._directory, self._request)
            if granted:
                self._good_until = asked + self._request.ttl_seconds
            else:
                what = f"the lease of fleet {self._request.fleet} was lost: it was not renewed in time"
                self._lost = _held_error(self._host, held, what)

    def _beat(self) -> None:
        while not self._ended.wait(self._request.ttl_seconds / 3) and self._lost is None:
            try:
                self._renew()
            except SparkPipelineError as error:
                self._progress(f"lease not renewed, will try again: {error.what}")
            else:
                if self._lost is not None:
                    self._progress(str(self._lost))

    def _end(self, beat: threading.Thread) -> None:
        self._ended.set()
        beat.join()
        self._give_back()

    def _give_back(self) -> None:
        try:
            _ask(self._host, "give_back", self._directory, self._request)
        except SparkPipelineError as error:
            left = human_seconds(self._request.ttl_seconds)
            self._progress(f"lease not given back, it expires within {left}: {error.what}")


@contextmanager
def hold(
    host: Host,
    *,
    fleet: str,
    owner: str,
    run_id: str,
    ttl_seconds: float = 90,
    progress: Progress,
    directory: str = DIRECTORY,
) -> Iterator[Lease]:
    """Hold the right to change `fleet` for the length of a block. The same run may hold it several times at once.

    Args:
        host: the fleet's head.
        owner: who holds it, for whoever is refused: 'anna@laptop, Dagster run 1a2b3c4d'.
        run_id: what belongs together.
        ttl_seconds: it expires so long after the last renewal; renewed three times as often.
        directory: on the head; below the login user's home by default.

    Raises:
        LeaseHeldError: another run holds it.
        MachineError: the head cannot be asked.
    """
    request = _Request(fleet, owner, run_id, uuid.uuid4().hex, ttl_seconds)
    lease = Lease(host, request, directory, progress)
    lease._take()
    beat = threading.Thread(target=lease._beat, name=f"lease {fleet}", daemon=True)
    beat.start()
    try:
        yield lease
    finally:
        to_the_end(lambda: lease._end(beat))


def look(host: Host, *, directory: str = DIRECTORY) -> Held | None:
    """Who holds the fleet whose head this is; None when nobody does."""
    return _ask(host, "look", directory, _Request("", "", "", "", 0))[1]


def _ask(host: Host, action: str, directory: str, request: _Request) -> tuple[bool, Held | None]:
    program = files("spark_pipeline.fleet").joinpath("lease_program.py").read_text(encoding="utf-8")
    argv = ["python3", "-IS", "-", action, directory, json.dumps(asdict(request))]
    done = host.run(argv, input=program, timeout=_ASK_SECONDS, check=False, urgent=True)
    if done.status != 0:
        raise MachineError(
            "the fleet's lease cannot be asked for",
            node=host.name,
            observed=f"status {done.status}: {done.stderr.strip()[-500:]}",
            remedy=f"the head needs python3, and {directory} must be writable for the login user",
        )
    answer = json.loads(done.stdout)
    if (raw := answer.get("lease")) is None:
        return answer["granted"], None
    held = Held(raw["fleet"], raw["owner"], raw["run_id"], raw["since"], raw["left_seconds"])
    return answer["granted"], held


def _held_error(host: Host, held: Held | None, what: str) -> LeaseHeldError:
    if held is None:
        return LeaseHeldError(
            what,
            node=host.name,
            observed="nobody holds it now; another run did since, or the head was restarted",
            remedy="see that the head stays reachable, then run the same again",
        )
    return LeaseHeldError(
        what,
        node=host.name,
        observed=f"held by {held.owner} (run {held.run_id}) since {held.since}",
        remedy=f"wait for that run, or end it: {human_seconds(held.left_seconds)} after its end the lease is free",
    )
