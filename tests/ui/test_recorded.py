"""All that the page is told of some journals, as recorded, and the headers that go with it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from journals import SLO, START, batch, write

from headgate.core.errors import ConfigError
from headgate.journal import (
    AssignmentChange,
    ControlAct,
    Decided,
    Event,
    FleetJobState,
    FleetRound,
    FleetStart,
    GroupRecords,
    Restart,
    Retry,
    SlotStats,
    Wish,
)
from headgate.report.limits import DriverSeen
from headgate.ui import questions
from headgate.ui.app import app, serve
from headgate.ui.history import HeatMap, JournalHistory
from headgate.ui.shelf import Shelf

Recorded = Callable[[str, Iterable[str]], None]


def lines(value: Any) -> list[str]:
    """Return JSON with a line for each list of numbers, or dict."""
    text = json.dumps(json.loads(json.dumps(value), parse_float=lambda t: float(f"{float(t):.6g}")))
    return text.replace("}, {", "},\n{").replace('], "', '],\n"').splitlines()


def run(batches: int, *, slo: bool = True) -> list[Event]:
    events: list[Event] = [START]
    for step in range(batches):
        state = dataclasses.replace(
            SLO, windows=10 * step, windows_met=9 * step - step % 3, success=0.5,
            floor_ms=None if step % 4 else 250.0,
        )  # fmt: skip
        stats = tuple(
            SlotStats(slot, 2, 3 * slot + step, slot, 10.0 * slot, operator="a")
            for slot in range(70)
        )
        groups = tuple(
            GroupRecords(of, [step % 7, 8 + step % 50], [step + 1, 2]) for of in ("a", "b")
        )
        given: dict[str, Any] = {"slot_stats": stats, "slots": 2 + step // 5}
        given |= {"slo": state if slo and step != 3 else None, "lag": {"x": step}}
        given |= (
            {"served_groups": groups} if step % 2 else {"served_groups": (), "arrivals": groups}
        )
        given |= {"latency_ms": None} if step == 5 else {}
        events.append(batch(step, **given))
    return [
        *events,
        Decided("unified", "r", "busy", False, (Wish("a", "scale-out", 3, 9),), at_ms=3_000),
        Decided("unified", "r", "calm", True, (), at_ms=3_100),
        AssignmentChange(1, 1, 2, 3, 9, 0, "unified", "busy", "a", at_ms=4_000),
        ControlAct("freeze", "user", "INC-1", at_ms=5_000),
        Restart(1, 0, at_ms=6_000),
        Retry(1, 1, "worker lost", at_ms=6_000),
    ]  # fmt: skip


@pytest.mark.parametrize("points", [-3, 1, 7, 40, 3_000])
def test_a_history_is_told_as_recorded(points: int, recorded: Recorded) -> None:
    history = JournalHistory()
    for event in run(60):
        history.absorb(event)
    told = history.describe("ck", 100_000, DriverSeen(), points)
    told.pop("diagnosis")
    if points != 40:
        told = {"curves": told["curves"]}
    recorded(f"history-{points}", lines(told))


def test_rows_and_columns_grow_as_recorded(recorded: Recorded) -> None:
    history = JournalHistory()
    heat, made = HeatMap(), []
    for event in run(600, slo=False):
        history.absorb(event)
    made += lines(history.describe("ck", 100_000, DriverSeen(), 30)["curves"])
    for at_ms, group in ((5_000, 1), (244_999, 2), (245_000, 0), (4_000, 3), (2_000_000, 41)):
        heat.add(at_ms, GroupRecords("a", [group], [group + 1]))
        heat.add(at_ms, GroupRecords("b", [], []))
        made += lines(heat.describe())
    for group in range(45):
        heat.add(2_000_000, GroupRecords("c", [group], [100 * group]))
    made += lines(heat.describe())
    recorded("growth", made)


def test_a_shelf_tells_as_recorded(tmp_path: Path, recorded: Recorded) -> None:
    now_ms = [70_000]
    write(tmp_path / "one" / "headgate" / "journal.jsonl", run(20))
    write(tmp_path / "alone" / "journal.jsonl", [dataclasses.replace(START, workload="q5")])
    bad = write(tmp_path / "bad" / "headgate" / "journal.jsonl", run(3, slo=False))
    bad.write_bytes(bad.read_bytes() + b"{\n")
    (tmp_path / "new" / "headgate").mkdir(parents=True)
    (tmp_path / "new" / "headgate" / "journal.jsonl").touch()
    job = FleetJobState("q5", "running", 30.0, 60.0, False)
    last = FleetRound(9.0, (job,), 30.0, 60.0, 3, 8, True, 110)
    write(tmp_path / "two" / "fleet.jsonl", [FleetStart("henge", 8, 10.0, 1, 100), last])
    write(tmp_path / "three" / "fleet.jsonl", [START])
    asked: list[Path] = []

    def driver(place: Path) -> DriverSeen:
        asked.append(place)
        return DriverSeen(holds=place.name != "one")

    shelf = Shelf([tmp_path], driver, lambda: now_ms[0])
    made: list[str] = []
    for later_ms in (0, 400, 200, 600_000):
        now_ms[0] += later_ms
        entries = sorted(shelf.index(), key=lambda entry: entry["place"])
        write(tmp_path / "one" / "headgate" / "journal.jsonl", [batch(90 + later_ms)])
        made += [f"at {now_ms[0]}", *lines(entries)]
        for entry in entries:
            query = shelf.query(entry["id"], 5)
            place = shelf.checkpoint(entry["id"])
            made.append(f"{entry['id'] is not None} {place} {query and query['error']}")
            made += lines(query and query["curves"]["at_s"])
            made += lines(shelf.fleet(entry["id"]))
        made += lines([shelf.query("none", 5), shelf.fleet("none"), shelf.checkpoint("none")])
    names = {entry["id"]: f"id-{n}" for n, entry in enumerate(entries)}
    assert {len(name) for name in names} == {12}
    text = "\n".join(made).replace(str(tmp_path), "{}")
    for name, short in names.items():
        text = text.replace(name, short)
    recorded("shelf", text.splitlines())
    assert {place.name for place in asked} == {"one", "bad", "new", "journal.jsonl"}


def asked_of(page: Any, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], str]:
    """Ask an application for a path, without a server."""
    got: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        got.append(message)

    raw, _, query = path.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": raw, "raw_path": raw.encode(), "scheme": "http",
        "query_string": query.encode(), "http_version": "1.1", "root_path": "", "server": ("x", 1),
        "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }  # fmt: skip
    asyncio.run(page(scope, receive, send))
    head = {key.decode(): value.decode() for key, value in got[0]["headers"]}
    return got[0]["status"], head, b"".join(m.get("body", b"") for m in got[1:]).decode()


def test_the_page_answers_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    write(tmp_path / "one" / "headgate" / "journal.jsonl", run(12))
    shelf = Shelf([tmp_path], lambda _: DriverSeen(), lambda: 70_000)
    (entry,) = shelf.index()
    name, page, made = entry["id"], app(shelf, "here.example"), []
    monkeypatch.setattr(shelf, "query", lambda of, points: {"of": of, "points": points})
    monkeypatch.setattr(questions, "inspect", lambda place: {"there": place.name})
    for host in ("127.0.0.1", "localhost", "here.example", "elsewhere"):
        status, head, body = asked_of(page, "/api/journals", {"host": host})
        head.pop("content-length")
        made += [f"{host}: {status}", *(f"    {item}" for item in sorted(head.items()))]
    for path in (
        "/api/query/ID", "/api/query/ID?points=12", "/api/query/ID?points=2000",
        "/api/query/ID?points=99999", "/api/query/ID?points=%C2%B2", "/api/checkpoint/ID",
        "/api/checkpoint/none", "/api/fleet/ID", "/api/what-if/none",
        "/api/what-if/ID?slo=a&policy=no:where&slots_max=3", "/api/what-if/ID?slots_max=1234567890",
        "/api/what-if/ID?slots_max=123456789&policy=nobody", "/api/none",
    ):  # fmt: skip
        for site in ("", "same-origin", "cross-site"):
            given = {"host": "localhost"} | ({"sec-fetch-site": site} if site else {})
            status, _, body = asked_of(page, path.replace("ID", name), given)
            made.append(f"{path} {site}: {status} {body}")
    text = "\n".join(made).replace(name, "ID")
    recorded("page", text.splitlines())


def test_the_page_is_served_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[Any] = []

    class Server:
        def __init__(self, config: Any) -> None:
            served.append(config.log_level)

        def run(self, sockets: list[Any]) -> None:
            served.append([one.getsockname()[0] for one in sockets])
            assert read.wait(60)  # before anybody has asked

    monkeypatch.setattr("headgate.ui.app.uvicorn.Server", Server)
    shelf, read = Shelf([tmp_path], lambda _: DriverSeen()), threading.Event()
    monkeypatch.setattr(shelf, "index", read.set)
    serve(shelf, "127.0.0.1", 0)
    assert served == ["warning", ["127.0.0.1"]]
    with pytest.raises(ConfigError, match=r"cannot be served at 256\.0\.0\.1:1: "):
        serve(shelf, "256.0.0.1", 1)
