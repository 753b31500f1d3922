"""What looks like a secret, by its name or its shape: such values are never written down or shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
# The last part of a name says what it holds: HF_TOKEN, GH_PAT, DB_PASS, MYSQL_PWD.
_NAME = re.compile(
    r"(^|[_-])(TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|PAT|AUTH|CREDENTIALS?)$", re.IGNORECASE
)
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def names_a_secret(name: str) -> bool:
    """Whether a variable or flag of this name holds one. PWD alone is the shell's directory."""
    return name != "PWD" and bool(_NAME.search(name.strip("-")))


def without_secret(name: str, value: str) -> str:
    """The value of a variable, or what may be shown of it: no secret, and no login inside a URL."""
    return HIDDEN if names_a_secret(name) else _LOGIN_IN_URL.sub(HIDDEN, value)


def words_without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of flags such as --api-key hidden, behind a blank as behind an equals sign."""
    shown: list[str] = []
    hide = False
    for word in words:
        flag, equals, value = word.partition("=")
        if hide:
            shown.append(HIDDEN)
        elif equals and flag.startswith("-"):
            shown.append(f"{flag}={without_secret(flag, value)}")
        else:
            shown.append(_LOGIN_IN_URL.sub(HIDDEN, word))
        hide = not equals and word.startswith("--") and names_a_secret(word)
    return tuple(shown)
