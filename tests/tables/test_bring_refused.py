"""Tests that an arena's file which is not usable is dropped, and built anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import StateError
from headgate.tables import arena
from headgate.tables.arena import ArenaStore


class File:
    """A file whose table may be trusted, and that notes whether it was dropped."""

    def __init__(self, trusted: bool | None) -> None:
        self.drops = 0
        self.table: Any = (
            None if trusted is None else SimpleNamespace(trusted=lambda: trusted, token="t")
        )

    def drop(self) -> None:
        self.drops += 1


@pytest.mark.parametrize(
    ("trusted", "leads", "used"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, False)],
)
def test_a_table_is_used_that_is_trusted_and_leads_to_the_state(
    monkeypatch: pytest.MonkeyPatch, trusted: bool | None, leads: bool, used: bool
) -> None:
    monkeypatch.setattr(arena, "bring", lambda table, token, chain: leads)
    store: Any = object.__new__(ArenaStore)
    file: Any = File(trusted)
    found = store._bring_table(file, 3, "t", lambda start: [])
    assert found is (file.table if used else None)
    assert file.drops == (not used)


def test_a_table_that_fails_on_the_way_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> bool:
        raise StateError("it breaks")

    monkeypatch.setattr(arena, "bring", fails)
    store: Any = object.__new__(ArenaStore)
    file: Any = File(True)
    with pytest.raises(StateError, match="it breaks"):
        store._bring_table(file, 3, "t", lambda start: [])
    assert file.drops == 1
    store._held = {}
    with pytest.raises(StateError, match="key group 3 is not held: acquire it first"):
        store._file(3)
