"""Columns and frames that are only said: each call makes a text of itself; without Spark."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any


class Said:
    """A column or a frame as the text that makes it; `known` are attributes that have a value."""

    def __init__(self, text: str, **known: Any) -> None:
        self.text, self.known = text, known

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.known[name] if name in self.known else Said(f"{self.text}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Said:
        parts = [shown(one) for one in given]
        parts += [f"{name}={shown(one)}" for name, one in named.items()]
        return Said(f"{self.text}({', '.join(parts)})")

    def __getitem__(self, key: Any) -> Said:
        return Said(f"{self.text}[{shown(key)}]")

    def __eq__(self, other: object) -> Any:
        return self._with("=", other)

    def __ne__(self, other: object) -> Any:
        return self._with("<>", other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __add__(self, other: object) -> Said:
        return self._with("+", other)

    def __radd__(self, other: object) -> Said:
        return Said(f"({shown(other)} + {self.text})")

    def __sub__(self, other: object) -> Said:
        return self._with("-", other)

    def __truediv__(self, other: object) -> Said:
        return self._with("/", other)

    def __and__(self, other: object) -> Said:
        return self._with("and", other)

    def __or__(self, other: object) -> Said:
        return self._with("or", other)

    def __le__(self, other: object) -> Said:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Said:
        return self._with(">", other)

    def __invert__(self) -> Said:
        return Said(f"not {self.text}")

    def __repr__(self) -> str:
        return self.text

    def _with(self, sign: str, other: object) -> Said:
        return Said(f"({self.text} {sign} {shown(other)})")


class Frame(Said):
    """A frame that knows its columns: `kinds` are types by name, as far as anybody asks for them."""

    def __init__(self, text: str, **kinds: Any) -> None:
        schema = {name: SimpleNamespace(dataType=kind) for name, kind in kinds.items()}
        super().__init__(text, columns=list(kinds), schema=schema, select=self._select)

    def _select(self, *columns: Any) -> Frame:
        names = [re.sub(r".*\.alias\((.*)\)$|.*\.", r"\1", shown(column)) for column in columns]
        text = f"{self.text}.select({', '.join(map(shown, columns))})"
        return Frame(text, **dict.fromkeys(name.strip("`") for name in names))


class _Functions:
    """Stands for `pyspark.sql.functions`: a column is its name, a literal its value."""

    def col(self, name: str) -> Said:
        return Said(name)

    def lit(self, value: Any) -> Said:
        return Said(shown(value))

    def expr(self, text: str) -> Said:
        return Said(text)

    def transform(self, value: Any, made: Any) -> Said:
        """Show what the function makes of an item."""
        return Said(f"transform({value}, {made(Said('item'))})")

    def __getattr__(self, name: str) -> Said:
        return Said(name)


F = _Functions()


def shown(value: Any) -> str:
    """Return a value as a call shows it: a text without quotes, which a column of that name is too."""
    return value if isinstance(value, str) else repr(value)
