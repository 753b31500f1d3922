"""The same work on several things at once; given up together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from spark_pipeline.errors import ALSO
from spark_pipeline.fleet.cancel import cancelled_by, stop_if_cancelled, to_the_end

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_POLL_SECONDS = 0.25


def each(items: Iterable[K], work: Callable[[K], T], *, at_once: int = 32) -> dict[K, T]:
    """`work(item)` for every item, in threads; results in the order of the items.

    Interrupted (Ctrl-C, a cancelled Dagster run), the commands that the threads run on nodes are ended there first.

    Raises:
        The error of the first item, in order, that failed; after all have ended. The others' are its notes.
    """
    names = list(dict.fromkeys(items))
    if len(names) == 1:
        return {names[0]: work(names[0])}
    given_up = threading.Event()

    def one(name: K) -> T:
        with cancelled_by(given_up):
            return work(name)

    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(names))), thread_name_prefix="each") as pool:
        futures: dict[K, Future[T]] = {name: pool.submit(one, name) for name in names}
        try:
            pending = set(futures.values())
            while pending:
                stop_if_cancelled()
                _, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        except BaseException:
            given_up.set()
            to_the_end(lambda: _wait_for_all(futures.values()))
            raise
    failed = [error for future in futures.values() if (error := future.exception()) is not None]
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"{ALSO}{other}")
        raise failed[0]
    return {name: future.result() for name, future in futures.items()}


def _wait_for_all(futures: Collection[Future[T]]) -> None:
    """Until those that have begun have ended; the others never begin."""
    for future in futures:
        future.cancel()
    wait(futures)
