"""A writer finds its own last commit among those of others in an Iceberg table; the table is made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headgate.spark.jvm import tables
from headgate.spark.jvm.tables import LastCommit, last_commit

KEYS = ("writer", "number")


class Snapshot:
    """A commit: what its writer noted of it, and which one was before."""

    def __init__(self, number: int, noted: Mapping[str, str] | None) -> None:
        self._number, self._noted = number, noted

    def summary(self) -> Mapping[str, str] | None:
        return self._noted

    def parentId(self) -> int | None:
        return self._number - 1 if self._number else None


class Table:
    """Its newest commits, the oldest of which is number `first`: those before have expired."""

    def __init__(self, commits: Sequence[Mapping[str, str] | None], first: int = 0) -> None:
        self._snapshots = {n: Snapshot(n, noted) for n, noted in enumerate(commits, first)}
        self.refreshed = 0

    def table(self) -> Table:
        return self

    def refresh(self) -> None:
        self.refreshed += 1

    def currentSnapshot(self) -> Snapshot | None:
        return self._snapshots[max(self._snapshots)] if self._snapshots else None

    def snapshot(self, number: int) -> Snapshot | None:
        return self._snapshots.get(number)


def by(writer: str, number: int) -> dict[str, str]:
    return {"writer": writer, "number": str(number)}


OTHERS: list[Mapping[str, str] | None] = [by("other", 9), {}, None]


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (Table([]), LastCommit(None, complete=True)),
        (Table([by("ours", 3)]), LastCommit(3, complete=True)),
        (Table([by("ours", 3), by("ours", 4), *OTHERS]), LastCommit(4, complete=True)),
        (Table(OTHERS), LastCommit(None, complete=True)),
        (Table([by("ours", 4), *OTHERS], first=7), LastCommit(4, complete=True)),
        (Table(OTHERS, first=7), LastCommit(None, complete=False)),
    ],
    ids=["empty", "alone", "behind others", "never", "before it expired", "expired, perhaps"],
)
def test_the_last_commit_of_a_writer(table: Any, wanted: LastCommit) -> None:
    assert last_commit(table, "ours", KEYS) == wanted
    assert table.refreshed == 1


def test_nobody_looks_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LOOK_BACK", 3)
    near: Any = Table([by("ours", 1), {}, {}])
    assert last_commit(near, "ours", KEYS) == LastCommit(1, complete=True)
    far: Any = Table([by("ours", 1), {}, {}, {}])
    assert last_commit(far, "ours", KEYS) == LastCommit(None, complete=False)
