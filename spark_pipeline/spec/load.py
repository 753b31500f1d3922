"""Reads one declaration from YAML; every error names file and line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from spark_pipeline.errors import DeclarationError
from spark_pipeline.spec.base import Declaration

D = TypeVar("D", bound=Declaration)


def load(path: Path, kind: type[D]) -> D:
    """Read `path` as `kind`.

    Raises:
        DeclarationError: unreadable, not YAML, a key twice, unknown keys, wrong types or values: all of them at once,
            a line each, `file:line: where: what`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(document, yaml.MappingNode):
            raise DeclarationError(
                f"{path}:1: must be a mapping of keys to values",
                remedy=f"write one `key: value` a line; known keys: {', '.join(kind.model_fields)}",
            )
        _refuse_odd_keys(path, document, set())
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(
            f"{path}:1: cannot be read as UTF-8 text", observed=str(error), remedy="mend the file or its permissions"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DeclarationError(f"{path}:{line}: not YAML: {error.problem}", remedy=f"mend line {line}") from error
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date that is none
        raise DeclarationError(f"{path}:1: not YAML: {error}", remedy="mend the file") from error
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems: dict[str, dict[str, None]] = {}  # alternatives of one value stand on one line
        for item in error.errors():
            place, message = _explain(path, document, tuple(item["loc"]), item["msg"], item["type"], kind)
            problems.setdefault(place, {})[message] = None
        lines = [f"{place}: {'; or: '.join(messages)}" for place, messages in problems.items()]
        raise DeclarationError("\n".join(lines), remedy="mend the lines named above") from error


def line_of(path: Path, *where: str | int) -> int:
    """Line (from 1) on which the value at `where` stands in the YAML file; the nearest enclosing line if absent."""
    document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    return _find(document, where)[0]


def _explain(
    path: Path,
    document: yaml.Node,
    loc: tuple[str | int, ...],
    message: str,
    kind_of_error: str,
    kind: type[Declaration],
) -> tuple[str, str]:
    """'file:line: where' and what is wrong there."""
    line, depth = _find(document, loc)
    block = ".".join(str(part) for part in loc[:-1]) or kind.__name__
    if kind_of_error == "extra_forbidden":
        return f"{path}:{line}: {block}", _unknown(str(loc[-1]), _known_keys(kind, loc[:-1]))
    if kind_of_error == "missing":
        return f"{path}:{line}: {block}", f"key {loc[-1]!r} is missing: write `{loc[-1]}: ...`"
    where = ".".join(str(part) for part in loc[:depth]) or kind.__name__
    return f"{path}:{line}: {where}", message.removeprefix("Value error, ")


def _unknown(key: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    meant = f": write {close[0]!r}" if close else ""
    return f"unknown key {key!r}{meant}" + (f" (known: {', '.join(known)})" if known else "")


def _known_keys(kind: type[Declaration], loc: tuple[str | int, ...]) -> tuple[str, ...]:
    """Keys of the block at `loc`, following declarations only; none where the way is not a declaration."""
    block: type[Declaration] = kind
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = block.model_fields[part].annotation if part in block.model_fields else None
        inner = [annotation, *getattr(annotation, "__args__", ())]
        blocks = [item for item in inner if isinstance(item, type) and issubclass(item, Declaration)]
        if not blocks:
            return ()
        block = blocks[0]
    return tuple(block.model_fields)


def _find(node: yaml.Node | None, loc: tuple[str | int, ...]) -> tuple[int, int]:
    """Line of the deepest part of `loc` that exists, and how many parts of it exist."""
    line, depth = 1, 0
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            hit = next(((key, value) for key, value in node.value if key.value == part), None)
            if hit is None:
                break
            line, node = hit[0].start_mark.line + 1, hit[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item = node.value[part]
            line, node = item.start_mark.line + 1, item
        else:
            break
        depth += 1
    return line, depth


def _refuse_odd_keys(path: Path, node: yaml.Node, seen: set[int]) -> None:
    """YAML lets a key stand twice and the last one win: two ports, and only one is true. It also lets a mapping be a
    key, which is what `name: {{ name }}` of a template means."""
    if id(node) in seen:  # an alias may contain itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            line = 1 + (key.start_mark.line if key.start_mark else 0)
            if not isinstance(key, yaml.ScalarNode):
                raise DeclarationError(f"{path}:{line}: a key must be one word", remedy="put the value in quotes")
            if key.value in keys:
                raise DeclarationError(f"{path}:{line}: key {key.value!r} stands twice", remedy="keep one of the two")
            keys.add(key.value)
            _refuse_odd_keys(path, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_odd_keys(path, item, seen)
