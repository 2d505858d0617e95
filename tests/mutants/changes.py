"""Finds all changes of one place in a file that could break it, and draws lines by lot.

A change is a piece of the source and the text that takes its place. Nothing is changed that only
describes: docstrings, annotations, imports, the text of messages; nor what only asserts, as ``strict`` of
a zip. `draw` gives each line that has a change the same chance, so that a room is drawn as often as it is
large.
"""

from __future__ import annotations

import ast
import difflib
import random
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
    "maximum": "minimum", "floor": "ceil", "ceil": "floor",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One place of a file, and the text that takes its place."""

    file: str
    """Below src/headgate."""
    line: int
    kind: str
    """Name of the operator: ``comparison``, ``boolean``, ``constant`` and so on."""
    begin: int
    end: int
    """Offsets of the place in the file's bytes."""
    new: str

    def applied(self, text: str) -> str:
        """Return the text of the file with the change in it."""
        raw = text.encode()
        return (raw[: self.begin] + self.new.encode() + raw[self.end :]).decode()

    def diff(self, text: str) -> tuple[str, str]:
        """Return the lines that go and the lines that come, each without its indentation."""
        gone, come = [], []
        for line in difflib.ndiff(text.splitlines(), self.applied(text).splitlines()):
            if line[0] == "-":
                gone.append(line[2:].strip())
            elif line[0] == "+":
                come.append(line[2:].strip())
        return "\n".join(gone), "\n".join(come)


def changes(file: str, text: str) -> list[Change]:
    """Return all changes of a file, in the order of its lines."""
    return sorted(set(_Finder(file, text)), key=lambda c: (c.line, c.begin, c.end, c.kind, c.new))


def draw(sources: dict[str, str], count: int, seed: int) -> list[Change]:
    """Draw lines of all sources by lot, without repetition, and one change of each line.

    Parameters
    ----------
    sources : dict
        Text of each file, by its name.
    count : int
    seed : int
        The same sources and seed give the same changes.
    """
    lots: dict[tuple[str, int], list[Change]] = {}
    for file in sorted(sources):
        for change in changes(file, sources[file]):
            lots.setdefault((file, change.line), []).append(change)
    dice = random.Random(seed)
    drawn = []
    for place in dice.sample(sorted(lots), min(count, len(lots))):
        kinds = sorted({change.kind for change in lots[place]})
        kind = dice.choice(kinds)
        drawn.append(dice.choice([change for change in lots[place] if change.kind == kind]))
    return drawn


class _Finder:
    """Walks the tree of one file and yields its changes."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.raw = text.encode()
        self._starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.tree = ast.parse(text)

    def __iter__(self) -> Iterator[Change]:
        yield from self._block(self.tree.body)

    def _block(self, body: Sequence[ast.stmt]) -> Iterator[Change]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Change]:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert)) or _only_for_types(node):
            return
        if _only_tells(node):
            return
        if isinstance(node, ast.Delete) and all(isinstance(t, ast.Name) for t in node.targets):
            return  # says that nobody uses a name any more
        if isinstance(
            node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue)
        ):
            yield self._change(node, "removal", "pass")
        if isinstance(node, ast.Assign) and isinstance(
            node.targets[0], (ast.Attribute, ast.Subscript)
        ):
            yield self._change(node, "removal", "pass")
        if isinstance(node, ast.Return) and node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                yield self._change(node.value, "return", "None")
        if isinstance(node, ast.AugAssign):
            yield from self._operator(node.target, node.op, node.value, "=")
        if isinstance(node, (ast.If, ast.While)):
            yield from self._condition(node.test, always=isinstance(node, ast.If))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._statement(child)
            elif not self._describes(node, child):
                yield from self._below(child)

    @staticmethod
    def _describes(node: ast.AST, child: ast.AST) -> bool:
        """Return whether a child is an annotation, the decorator of a class, or a message."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and child is node.returns:
            return True
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            return True
        if isinstance(node, ast.Assign) and child is node.value:
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            return names in (["msg"], ["__all__"])
        return isinstance(node, ast.ClassDef) and child in node.decorator_list

    def _below(self, node: ast.AST) -> Iterator[Change]:
        """Yield changes of what is no statement."""
        if isinstance(node, ast.arg):
            return  # nothing in it but its annotation
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            yield from self._block(node.body)
        elif isinstance(node, ast.JoinedStr):
            return  # text for people
        if isinstance(node, ast.expr):
            yield from self._expression(node)
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self._condition(test)
        if isinstance(node, ast.match_case) and node.guard is not None:
            yield from self._condition(node.guard)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt) and not _asserts(node, child):
                yield from self._below(child)

    def _expression(self, node: ast.expr) -> Iterator[Change]:
        if isinstance(node, ast.Compare):
            yield from self._comparison(node)
        elif isinstance(node, ast.BoolOp):
            yield from self._boolean(node)
        elif isinstance(node, ast.BinOp):
            if not _is_text(node.left):
                yield from self._operator(node.left, node.op, node.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            kind = "boolean" if isinstance(node.op, ast.Not) else "arithmetic"
            yield self._change(node, kind, self._grouped(node.operand))
        elif isinstance(node, ast.IfExp):
            yield from self._condition(node.test)
            for branch in (node.body, node.orelse):
                yield self._change(node, "condition", self._grouped(branch))
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)

    def _comparison(self, node: ast.Compare) -> Iterator[Change]:
        terms = [node.left, *node.comparators]
        for left, operator, right in zip(terms, node.ops, terms[1:], strict=False):
            yield from self._between(left, right, *_COMPARISONS[type(operator)], "comparison")
        if len(node.ops) > 1:
            second = self._offset(terms[1].lineno, terms[1].col_offset)
            yield self._piece(node.lineno, "comparison", self._begin(node), second, "")

    def _boolean(self, node: ast.BoolOp) -> Iterator[Change]:
        old, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:  # with more, another operator would bind otherwise
            yield from self._between(node.values[0], node.values[1], old, other, "boolean")
        for index, value in enumerate(node.values):
            rest = [self._grouped(v) for i, v in enumerate(node.values) if i != index]
            new = rest[0] if len(rest) == 1 else "(" + f" {old} ".join(rest) + ")"
            yield self._piece(value.lineno, "boolean", self._begin(node), self._end(node), new)

    def _operator(
        self, left: ast.expr, operator: ast.operator, right: ast.expr, after: str = ""
    ) -> Iterator[Change]:
        if type(operator) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(operator)]
            yield from self._between(left, right, old + after, new + after, "arithmetic")

    def _constant(self, node: ast.Constant) -> Iterator[Change]:
        value = node.value
        if isinstance(value, bool):
            yield self._change(node, "constant", str(not value))
        elif isinstance(value, int):
            yield self._change(node, "constant", str(value + 1))
            if value > 1:
                yield self._change(node, "constant", str(value - 1))
        elif isinstance(value, float):
            yield self._change(node, "constant", repr(value * 2 or 1.0))

    def _call(self, node: ast.Call) -> Iterator[Change]:
        name = node.func
        if isinstance(name, ast.Name) and name.id in _NAMES:
            yield self._change(name, "swap", _NAMES[name.id])
        elif isinstance(name, ast.Attribute) and name.attr in _NAMES:
            end = self._end(name)
            yield self._piece(
                name.end_lineno or name.lineno, "swap", end - len(name.attr), end, _NAMES[name.attr]
            )
        arguments = [*node.args, *node.keywords]
        for keyword in node.keywords:
            if keyword.arg is None or _is_text(keyword.value) or _asserts(node, keyword):
                continue
            index = arguments.index(keyword)
            begin, end = self._begin(keyword), self._end(keyword)
            if index:
                begin = self._end(arguments[index - 1])
            elif len(arguments) > 1:
                end = self._begin(arguments[1])
            yield self._piece(keyword.lineno, "argument", begin, end, "")

    def _condition(self, test: ast.expr, always: bool = True) -> Iterator[Change]:
        if isinstance(test, ast.Constant):
            return
        if always:
            yield self._change(test, "condition", "True")
        yield self._change(test, "condition", "False")

    def _between(
        self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str
    ) -> Iterator[Change]:
        """Yield the change of an operator in the text between its operands."""
        begin, end = self._end(left), self._begin(right)
        gap = self.raw[begin:end].decode()
        if gap.count(old) == 1 and "#" not in gap:
            at = begin + len(gap[: gap.index(old)].encode())
            line = left.end_lineno or left.lineno
            line += gap[: gap.index(old)].count("\n")
            yield self._piece(line, kind, at, at + len(old), new)

    def _change(self, node: ast.AST, kind: str, new: str) -> Change:
        return self._piece(node.lineno, kind, self._begin(node), self._end(node), new)  # type: ignore[attr-defined]

    def _piece(self, line: int, kind: str, begin: int, end: int, new: str) -> Change:
        return Change(self.file, line, kind, begin, end, new)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _begin(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _grouped(self, node: ast.expr) -> str:
        """Return the text of an operand; in brackets, unless nothing could bind otherwise."""
        text = self._text(node)
        simple = isinstance(
            node, ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript
        )
        return text if simple else f"({text})"

    def _text(self, node: ast.AST) -> str:
        return self.raw[self._begin(node) : self._end(node)].decode()


def _only_tells(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring or an ellipsis, or a function of a protocol.

    The classes that have the function have defaults of their own.
    """
    if isinstance(node, ast.FunctionDef):
        return all(map(_only_tells, node.body))
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _only_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _asserts(node: ast.AST, child: ast.AST) -> bool:
    """Return whether a part of a call only asserts, or says how much of a value a message shows.

    The type of a cast and the equal lengths of a zip assert; `shown` has the length of a text for people.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id == "cast":
        return child in node.args[:1]
    if node.func.id == "shown":
        return child in node.args[1:] and isinstance(child, ast.Constant)
    return node.func.id == "zip" and isinstance(child, ast.keyword) and child.arg == "strict"


def sources(root: Path) -> dict[str, str]:
    """Return the text of each file of the product, by its name below src/headgate."""
    below = root / "src" / "headgate"
    found = {}
    for path in sorted(below.rglob("*.py")):
        with tokenize.open(path) as file:
            found[str(path.relative_to(below))] = file.read()
    return found
