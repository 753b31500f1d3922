"""Five cron fields, checked while the declaration is read: a schedule that never fires is found out weeks later."""

from __future__ import annotations

import re

_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_EXAMPLE = '"0 4 * * 0", Sundays at 04:00 UTC'
_TERM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[1-9]\d*))?")


def check_cron(value: str) -> str:
    """Give `value` back if it is `minute hour day-of-month month day-of-week`. Raises ValueError."""
    fields = value.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"write five cron fields, such as {_EXAMPLE}; here are {len(fields)}")
    for text, (what, low, high, names) in zip(fields, _FIELDS, strict=True):
        if not all(_is_term(term, low, high, names) for term in text.split(",")):
            raise ValueError(f"cron field {what} is {text!r}: write numbers from {low} to {high}, such as {_EXAMPLE}")
    return " ".join(fields)


def _is_term(term: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    match = _TERM.fullmatch(term)
    if match is None:
        return False
    ends = [_number(text, low, names) for text in match.group("first", "last") if text is not None]
    inside = all(end is not None and low <= end <= high for end in ends)
    return inside and (len(ends) < 2 or (ends[0] or 0) <= (ends[1] or 0))


def _number(text: str, low: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + low
    return int(text) if text.isdecimal() else None
