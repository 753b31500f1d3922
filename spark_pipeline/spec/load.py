"""Reads one declaration from YAML; every error names file and line."""

from __future__ import annotations

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
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path}:1: cannot be read", observed=str(error)) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DeclarationError(f"{path}:{line}: not YAML: {error.problem}", remedy=f"mend line {line}") from error
    if not isinstance(document, yaml.MappingNode):
        raise DeclarationError(f"{path}:1: must be a mapping of keys to values", remedy=f"see docs for {kind.__name__}")
    _refuse_repeated_keys(path, document)
    try:
        return kind.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        lines = [_line(path, document, tuple(item["loc"]), item["msg"], item["type"], kind) for item in error.errors()]
        raise DeclarationError("\n".join(dict.fromkeys(lines)), remedy="mend the lines named above") from error


def line_of(path: Path, *where: str | int) -> int:
    """Line (from 1) on which the value at `where` stands in the YAML file; the nearest enclosing line if absent."""
    document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    return _find(document, where)[0]


def _line(
    path: Path,
    document: yaml.Node,
    loc: tuple[str | int, ...],
    message: str,
    kind_of_error: str,
    kind: type[Declaration],
) -> str:
    line, depth = _find(document, loc)
    where = ".".join(str(part) for part in loc[:depth]) or kind.__name__
    message = message.removeprefix("Value error, ")
    if kind_of_error == "extra_forbidden":
        message = f"unknown key {loc[-1]!r}"
        where = ".".join(str(part) for part in loc[:-1]) or kind.__name__
        message += _known_keys(kind, loc[:-1])
    elif kind_of_error == "missing":
        message = f"key {loc[-1]!r} is missing"
        where = ".".join(str(part) for part in loc[:-1]) or kind.__name__
    return f"{path}:{line}: {where}: {message}"


def _known_keys(kind: type[Declaration], loc: tuple[str | int, ...]) -> str:
    """' (known: a, b)' for the block at `loc`, following declarations only; '' where the way is not a declaration."""
    block: type[Declaration] = kind
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = block.model_fields[part].annotation if part in block.model_fields else None
        inner = [annotation, *getattr(annotation, "__args__", ())]
        blocks = [item for item in inner if isinstance(item, type) and issubclass(item, Declaration)]
        if not blocks:
            return ""
        block = blocks[0]
    return f" (known: {', '.join(block.model_fields)})"


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
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
        depth += 1
    return line, depth


def _refuse_repeated_keys(path: Path, node: yaml.Node) -> None:
    """YAML lets a key stand twice and the last one win: two ports, and only one is true."""
    if isinstance(node, yaml.MappingNode):
        seen: set[object] = set()
        for key, value in node.value:
            if key.value in seen:
                raise DeclarationError(
                    f"{path}:{key.start_mark.line + 1}: key {key.value!r} stands twice", remedy="keep one of the two"
                )
            seen.add(key.value)
            _refuse_repeated_keys(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(path, item)
