"""Answers that are shared and those that are not; a heat map at its bound."""

from __future__ import annotations

import asyncio
import json
import types
from pathlib import Path
from typing import Any

import pytest
from journals import START, write

from headgate.journal import GroupRecords
from headgate.report.limits import DriverSeen
from headgate.ui import app as page
from headgate.ui import history
from headgate.ui.shelf import Shelf


def test_a_page_of_few_points_is_made_for_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole is shared, however soon another one asks; a part is nobody else's."""
    write(tmp_path / "one" / "headgate" / "journal.jsonl", [START])
    shelf = Shelf([tmp_path], lambda _: DriverSeen(), lambda: 70_000)
    (entry,) = shelf.index()
    asked: list[int] = []

    def query(name: str, points: int) -> dict[str, Any]:
        asked.append(points)
        return {"points": points, "number": len(asked)}

    monkeypatch.setattr(shelf, "query", query)
    monkeypatch.setattr(page, "time", types.SimpleNamespace(monotonic=lambda: 50.0))
    application = page.app(shelf, "localhost")

    def answer(words: str) -> tuple[int, int]:
        got: list[Any] = []

        async def send(message: Any) -> None:
            got.append(message)

        path = f"/api/query/{entry['id']}"
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "scheme": "http",
            "query_string": words.encode(), "http_version": "1.1", "root_path": "", "server": ("x", 1),
            "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"}, "headers": [(b"host", b"localhost")],
        }  # fmt: skip
        asyncio.run(application(scope, None, send))  # type: ignore[arg-type]
        told = json.loads(b"".join(m.get("body", b"") for m in got[1:]))
        return told["points"], told["number"]

    words = (
        "",
        "points=12",
        "points=12",
        "points=2000",
        "points=1999",
        "points=99999",
        "points=x",
        "",
    )
    assert [answer(one) for one in words] == [
        (2000, 1), (12, 2), (12, 3), (2000, 1), (1999, 4), (2000, 1), (2000, 1), (2000, 1),
    ]  # fmt: skip
    assert asked == [2000, 12, 12, 1999]


def test_a_heat_map_has_as_many_cells_as_it_may_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "HEAT_CELLS", 5 * history.HEAT_COLUMNS)

    def shown(*groups: tuple[str, int]) -> list[tuple[str, int]]:
        heat = history.HeatMap()
        for operator, group in groups:
            heat.add(1_000, GroupRecords(operator, [group], [1]))
        return sorted((row["operator"], row["group"]) for row in heat.describe()["rows"])

    assert shown(("a", 4)) == [("a", 4)]
    assert shown(("a", 5)) == []
    assert shown(("a", 4), ("b", 0)) == [("a", 4)]
    assert shown(("a", 3), ("b", 0)) == [("a", 3), ("b", 0)]
    assert shown(("a", 3), ("b", 1), ("a", 4)) == [("a", 3), ("a", 4)]
