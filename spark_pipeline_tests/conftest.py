"""Where the tests are started from does not matter to them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell that starts something in the background has it ignore Ctrl-C, and whatever that starts ignores it too:
    the tests of Ctrl-C would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
