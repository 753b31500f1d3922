"""What a command that failed says about itself in an error."""

from __future__ import annotations

from spark_pipeline.errors import CommandFailedError
from spark_pipeline.fleet.host import Completed, Words, shell_text

_ERROR_LINES = 15  # of the program's last words


def named(argv: Words) -> str:
    """The command in an error's first line: recognisable, never a page."""
    text = shell_text(argv).replace("\n", " ")
    return text if len(text) <= 160 else text[:160] + " ..."


def last_lines(*texts: str) -> str:
    """The last lines of the first text that has any."""
    for text in texts:
        lines = text.strip().splitlines()
        if lines:
            return "\n".join(line[-500:] for line in lines[-_ERROR_LINES:])
    return "it printed nothing"


def failure(node: str, completed: Completed, stdout_tail: str = "") -> CommandFailedError:
    """The error of a command that ended with a status that is not 0."""
    return CommandFailedError(
        f"{named(completed.argv)} failed",
        node=node,
        observed=f"status {completed.status}: {last_lines(completed.stderr, completed.stdout, stdout_tail)}",
        remedy="run it by hand on that node to see it fail" if completed.status != 127 else "install that program",
    )
