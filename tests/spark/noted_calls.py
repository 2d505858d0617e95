"""Notes what code calls in place of Spark and of other rooms, in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest


class Calls:
    """What was called: tuples of a name and what was given; what was given by name is a last mapping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[Any] = []
        self._monkeypatch = monkeypatch

    def one(self, name: str, answer: Any = None) -> Any:
        """Return a function that notes its call, and returns the answer or raises it."""

        def call(*given: Any, **named: Any) -> Any:
            self.did.append((name, *given, named) if named else (name, *given))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def several(self, **answers: Any) -> Any:
        """Return an object whose methods note their calls."""
        return SimpleNamespace(**{name: self.one(name, told) for name, told in answers.items()})

    def put(self, where: Any, **answers: Any) -> None:
        """Put functions that note their calls in the place of a module's, for the test."""
        for name, answer in answers.items():
            self._monkeypatch.setattr(where, name, self.one(name, answer))

    def within(self, where: Any, *names: str) -> None:
        """Put contexts that note when they are entered and left in the place of a module's."""
        for name in names:

            @contextmanager
            def context(*given: Any, name: str = name) -> Iterator[None]:
                self.did.append((name, *given))
                yield
                self.did.append(f"{name} is left")

            self._monkeypatch.setattr(where, name, context)

    def names(self) -> list[str]:
        """Return the names of the calls."""
        return [one if isinstance(one, str) else one[0] for one in self.did]
