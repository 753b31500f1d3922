"""The tables that a Python module defines, worked out from its text: nothing of it is imported or run.

Only what tables are made of is understood: literals, names that were defined before, unions by `**`, `|` and `update`,
comprehensions, and calls of dict-like classes with their entries. Whatever else stands there is UNKNOWN, entry by
entry, so that one odd line does not hide the rest. Which branch of an `if` would run is not asked: what any of them
adds is counted, as every round of a loop is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

UNKNOWN = object()  # a value that cannot be told; as an entry's value it keeps the key
_LIKE_DICT = ("dict", "OrderedDict", "MappingProxyType")


def tables_of(text: str, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Module-level name -> value, UNKNOWN where it cannot be worked out.

    Args:
        text: of one module.
        known: names that another module defines and this one imports.

    Raises:
        SyntaxError: this is not a Python module (ValueError: it has a zero byte in it).
    """
    reader = _Reader(dict(known or {}))
    reader.run(ast.parse(text).body)
    return reader.names


class _Reader:
    """Goes through a module's statements in their order."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def run(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                if statement.value is not None:
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    self._assign(targets, self.value(statement.value))
            elif isinstance(statement, ast.AugAssign):
                self._update(statement.target, self.value(statement.value))
            elif isinstance(statement, ast.Expr):
                self._call(statement.value)
            elif isinstance(statement, ast.Try):
                self._either([*statement.body, *statement.orelse], *(one.body for one in statement.handlers))
                self.run(statement.finalbody)
            elif isinstance(statement, ast.If):
                self._either(statement.body, statement.orelse)
            elif isinstance(statement, ast.Match):
                self._either(*(case.body for case in statement.cases))
            elif isinstance(statement, ast.With):
                self.run(statement.body)
            elif isinstance(statement, ast.For | ast.While):
                self._loop(statement)

    def _either(self, *branches: Iterable[ast.stmt]) -> None:
        """Each branch is read as if it were the only one; afterwards a name holds what all of them gave it."""
        before = dict(self.names)
        ends: list[dict[str, Any]] = []
        for branch in branches:
            self._set(before)
            self.run(branch)
            ends.append(dict(self.names))
        self._set({name: _all_of([end[name] for end in ends if name in end]) for end in ends for name in end})

    def _loop(self, node: ast.For | ast.While) -> None:
        """Every round of a loop over something that is known; else the body once."""
        items = self.value(node.iter) if isinstance(node, ast.For) else UNKNOWN
        for item in list(items) if isinstance(items, list | tuple | dict) else [UNKNOWN]:
            if isinstance(node, ast.For):
                self._bind(node.target, item)
            self.run(node.body)
        self.run(node.orelse)

    def _set(self, names: Mapping[str, Any]) -> None:
        self.names = dict(names)

    def _assign(self, targets: Iterable[ast.expr], value: Any) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                self.names[target.id] = value
            elif isinstance(target, ast.Subscript):
                table, key = self.value(target.value), self.value(target.slice)
                if isinstance(table, dict) and isinstance(key, str):
                    table[key] = value

    def _update(self, target: ast.expr, value: Any) -> None:
        table = self.value(target)
        if isinstance(table, dict) and isinstance(value, dict):
            table.update(value)
        elif isinstance(table, list) and isinstance(value, list | tuple):
            table.extend(value)

    def _call(self, node: ast.expr) -> None:
        """`TABLE.update(...)`, the one statement that changes a table by a call."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            self._update(node.func.value, self._entries(node))

    def value(self, node: ast.expr) -> Any:
        """What an expression gives; UNKNOWN when that cannot be told."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return self._sequence(node)
        if isinstance(node, ast.BinOp):
            return self._joined(node)
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
            return "".join(parts) if all(isinstance(part, str) for part in parts) else UNKNOWN
        if isinstance(node, ast.DictComp):
            pairs = [(self.value(node.key), self.value(node.value)) for _ in self._loops(node.generators)]
            return {key: value for key, value in pairs if isinstance(key, str)}
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return [self.value(node.elt) for _ in self._loops(node.generators)]
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return UNKNOWN

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item)
            if key is None:  # **other
                made.update(value if isinstance(value, dict) else {})
            elif isinstance(name := self.value(key), str):
                made[name] = value
        return made

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set) -> Any:
        items: list[Any] = []
        for item in node.elts:
            value = self.value(item.value if isinstance(item, ast.Starred) else item)
            if not isinstance(item, ast.Starred):
                items.append(value)
            elif isinstance(value, list | tuple):
                items.extend(value)
        return tuple(items) if isinstance(node, ast.Tuple) else items

    def _joined(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.BitOr) and (isinstance(left, dict) or isinstance(right, dict)):
            return {**(left if isinstance(left, dict) else {}), **(right if isinstance(right, dict) else {})}
        if isinstance(node.op, ast.Add):
            for kind in (str, list, tuple):
                if isinstance(left, kind) and isinstance(right, kind):
                    return left + right  # pyright: ignore[reportOperatorIssue]
        return UNKNOWN

    def _item(self, node: ast.Subscript) -> Any:
        table, key = self.value(node.value), self.value(node.slice)
        if isinstance(table, dict) and isinstance(key, str):
            return table.get(key, UNKNOWN)
        if isinstance(table, list | tuple) and isinstance(key, int) and -len(table) <= key < len(table):
            return table[key]
        return UNKNOWN

    def _called(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute):
            owner = self.value(function.value)
            if isinstance(owner, dict):
                views = {"items": owner.items, "keys": owner.keys, "values": owner.values, "copy": owner.copy}
                if function.attr in views and not node.args:
                    made = views[function.attr]()
                    return made if isinstance(made, dict) else list(made)
            return UNKNOWN
        if isinstance(function, ast.Subscript):  # OrderedDict[str, str](...)
            function = function.value
        name = function.id if isinstance(function, ast.Name) else ""
        if name in ("list", "tuple", "sorted", "set", "frozenset") and len(node.args) == 1:
            value = self.value(node.args[0])
            return list(value) if isinstance(value, list | tuple | dict) else UNKNOWN
        # A class of the module's own that is filled by keywords (vLLM's LazyConfigDict) is a table as well.
        if name in _LIKE_DICT or (node.keywords and not node.args):
            return self._entries(node)
        return UNKNOWN

    def _entries(self, node: ast.Call) -> dict[str, Any]:
        """What `dict(...)` would make of these arguments."""
        made: dict[str, Any] = {}
        for argument in node.args:
            value = self.value(argument)
            pairs = value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            made.update(pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2)
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is None:
                made.update(value if isinstance(value, dict) else {})
            else:
                made[keyword.arg] = value
        return made

    def _loops(self, generators: list[ast.comprehension]) -> Iterable[None]:
        """Once for each round of a comprehension's loops, its names set; conditions that cannot be told are false."""
        if not generators:
            yield
            return
        first, *others = generators
        items, before = self.value(first.iter), dict(self.names)
        for item in items if isinstance(items, list | tuple | dict) else ():
            self._bind(first.target, item)
            if all(self._holds(condition) for condition in first.ifs):
                yield from self._loops(others)
        self._set(before)

    def _bind(self, target: ast.expr, item: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = item
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(item, tuple | list):
            for part, value in zip(target.elts, item, strict=False):
                self._bind(part, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:  # not what an earlier round left there
                self._bind(part, UNKNOWN)

    def _holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            results = [self._holds(part) for part in node.values]
            return all(results) if isinstance(node.op, ast.And) else any(results)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.value(node.left), self.value(node.comparators[0])
            if left is UNKNOWN or right is UNKNOWN:
                return False
            return _compare(node.ops[0], left, right)
        return False


def _all_of(values: list[Any]) -> Any:
    """What several branches gave one name: their tables joined (of one key the first), else the first that is known."""
    known = [value for value in values if value is not UNKNOWN]
    if len(known) > 1 and all(isinstance(value, dict) for value in known):
        if all(value is known[0] for value in known):  # others may hold the same table
            return known[0]
        return {key: value for table in reversed(known) for key, value in table.items()}
    if len(known) > 1 and all(isinstance(value, list) for value in known):
        first, *others = known
        return first + [item for other in others if other is not first for item in other]
    return known[0] if known else UNKNOWN


def _compare(operator: ast.cmpop, left: Any, right: Any) -> bool:
    try:
        if isinstance(operator, ast.Eq):
            return left == right
        if isinstance(operator, ast.NotEq):
            return left != right
        if isinstance(operator, ast.In):
            return left in right
        if isinstance(operator, ast.NotIn):
            return left not in right
    except TypeError:  # `in` something that holds nothing
        return False
    return False
