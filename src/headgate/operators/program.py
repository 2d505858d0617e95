"""Merges buffers by Catalyst's expressions for an aggregate, on whole columns of words.

A declarative aggregate of Catalyst has one merge expression per leaf, over the leaves of the left and the
right buffer. Here an expression is a nested tuple, ``("add", x, y)``, and is computed for all rows at
once. The buffers of one row are merged in pairs of neighbours, so n buffers take log n passes and keep
their sequence.

Nulls behave as in SQL: a sum with a null is null, and an ``if`` with a null condition takes the else
branch. A value is a pair (array, mask of nulls).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.operators.spec import Expression, Kind, Program
from headgate.tables.ports import I64

Mask = npt.NDArray[np.bool_]
Value = tuple[npt.NDArray[Any], Mask]

_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "less": np.less,
    "less_or_equal": np.less_equal,
    "greater": np.greater,
    "greater_or_equal": np.greater_equal,
}
_LOGIC = ("and", "or", "not")


@dataclass(frozen=True)
class Leaves:
    """Merges rows by the leaves of one aggregate; `leaves` are rows of `RowLayout.leaves`."""

    program: Program
    leaves: I64

    def merge(self, rows: I64, index: I64, incoming: I64) -> None:
        """Merge rows ``incoming[j]`` into ``rows[index[j]]``, for ascending j."""
        if len(index) == 0:
            return
        order = np.argsort(index, kind="stable")
        of = index[order]
        buffers = self._read(incoming[order])
        while len(of) > 1:
            same = np.flatnonzero(of[1:] == of[:-1]) + 1
            if len(same) == 0:
                break
            starts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]])
            place = np.arange(len(of)) - np.repeat(starts, np.diff(np.r_[starts, len(of)]))
            right = same[place[same] % 2 == 1]
            merged = self._merged(_taken(buffers, right - 1), _taken(buffers, right))
            for (values, nulls), (new, new_nulls) in zip(buffers, merged, strict=True):
                values[right - 1], nulls[right - 1] = new, new_nulls
            others = np.ones(len(of), dtype=np.bool_)
            others[right] = False
            of, buffers = of[others], _taken(buffers, others)
        there = self._read(rows[of])
        self._write(rows, of, self._merged(there, buffers))

    def _merged(self, left: list[Value], right: list[Value]) -> list[Value]:
        count = len(left[0][0])
        with np.errstate(all="ignore"):
            merged = [_value(merge, left, right, count) for merge in self.program.merges]
        return [
            (np.broadcast_to(values, count), np.broadcast_to(nulls, count))
            for values, nulls in merged
        ]

    def _read(self, words: I64) -> list[Value]:
        values: list[Value] = []
        for word, _, kind, bit, null_word in self.leaves.tolist():
            column = words[:, word].copy()
            nulls = ((words[:, null_word] >> bit) & 1).astype(np.bool_)
            values.append((column.view(np.float64) if kind == Kind.FLOAT else column, nulls))
        return values

    def _write(self, rows: I64, index: I64, buffers: list[Value]) -> None:
        for (word, _, kind, bit, null_word), (values, nulls) in zip(
            self.leaves.tolist(), buffers, strict=True
        ):
            if kind == Kind.FLOAT:
                words = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
            else:
                words = np.asarray(values, dtype=np.int64)
            rows[index, word] = np.where(nulls, 0, words)
            masks = rows[index, null_word] & ~(1 << bit)
            rows[index, null_word] = masks | (nulls.astype(np.int64) << bit)


def _taken(buffers: list[Value], which: npt.NDArray[Any]) -> list[Value]:
    return [(values[which], nulls[which]) for values, nulls in buffers]


def _value(expression: Expression, left: list[Value], right: list[Value], count: int) -> Value:
    """Return the value of an expression for `count` pairs of buffers."""
    name, parts = expression[0], expression[1:]
    if name in ("left", "right"):
        return (left if name == "left" else right)[parts[0]]
    if name == "value":
        (constant,) = parts
        null = constant is None
        return np.full(count, 0 if null else constant), np.full(count, null)
    operands = [_value(part, left, right, count) for part in parts]
    if name in _LOGIC:
        return _logic(name, operands)
    return _OTHERS[name](operands) if name in _OTHERS else _number(name, operands)


def _number(name: str, operands: list[Value]) -> Value:
    (x, x_null), (y, y_null) = operands
    return _NUMBERS[name](x, y), x_null | y_null


def _if(operands: list[Value]) -> Value:
    (condition, unknown), (then, then_null), (other, other_null) = operands
    chosen = condition.astype(np.bool_) & ~unknown
    return np.where(chosen, then, other), np.where(chosen, then_null, other_null)


def _coalesce(operands: list[Value]) -> Value:
    values, nulls = operands[-1]
    for more, more_null in reversed(operands[:-1]):
        values, nulls = np.where(more_null, values, more), nulls & more_null
    return values, nulls


def _is_null(operands: list[Value]) -> Value:
    ((_, nulls),) = operands
    return nulls, np.zeros_like(nulls)


def _is_not_null(operands: list[Value]) -> Value:
    ((_, nulls),) = operands
    return ~nulls, np.zeros_like(nulls)


def _divide(operands: list[Value]) -> Value:
    (x, x_null), (y, y_null) = operands
    return np.divide(x, np.where(y == 0, 1, y)), x_null | y_null | (y == 0)


def _equal(operands: list[Value]) -> Value:
    (x, x_null), (y, y_null) = operands
    both_nan = (x != x) & (y != y)  # noqa: PLR0124 -- to Spark one NaN equals another
    return (x == y) | both_nan, x_null | y_null


_OTHERS: dict[str, Callable[[list[Value]], Value]] = {
    "coalesce": _coalesce,
    "divide": _divide,
    "equal": _equal,
    "if": _if,
    "is_not_null": _is_not_null,
    "is_null": _is_null,
}


def _logic(name: str, operands: list[Value]) -> Value:
    """Return ``and``, ``or`` or ``not`` in three-valued logic: true, false, unknown."""
    known = [(values.astype(np.bool_) & ~nulls, nulls) for values, nulls in operands]
    if name == "not":
        ((true, unknown),) = known
        return ~true & ~unknown, unknown
    (x, x_null), (y, y_null) = known
    if name == "and":
        false = (~x & ~x_null) | (~y & ~y_null)
        return x & y, ~false & (x_null | y_null)
    return x | y, ~(x | y) & (x_null | y_null)
