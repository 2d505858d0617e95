"""Drawn courses of journals, heat maps, viewers and clients, as recorded or beside a plain model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import resource
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journals import SLO, START, batch, write

from headgate.core.errors import CheckpointError
from headgate.journal import (
    AssignmentChange,
    ControlAct,
    Decided,
    GroupRecords,
    Latency,
    Restart,
    Retry,
    Stop,
    Wish,
)
from headgate.report.limits import DriverSeen
from headgate.ui import app as page
from headgate.ui import questions, shelf
from headgate.ui.history import CHANGES_KEPT, HeatMap, JournalHistory, Rows
from headgate.ui.shelf import Shelf

Recorded = Callable[[str, Iterable[str]], None]


def lines(value: Any) -> list[str]:
    """Return JSON with a line for each part, numbers with six digits."""
    text = json.dumps(json.loads(json.dumps(value), parse_float=lambda t: float(f"{float(t):.6g}")))
    return text.replace("}, {", "},\n{").replace('], "', '],\n"').splitlines()


# --- Histories ------------------------------------------------------------------------------------------


def event_at(dice: random.Random, step: int, at_ms: int) -> Any:
    """Return what a journal may have next: mostly a batch, of which anything may be missing."""
    acts: list[Any] = [
        AssignmentChange(step, 1, 2, dice.randint(1, 9), 9, 0, "unified", "busy", "a"),
        ControlAct("freeze", "user", "INC-1"), Restart(step, 0), Retry(step, 1, "worker lost"),
        Stop("stopped"), Decided("unified", "r", "calm", True, ()),
        Decided("unified", "r", "busy", dice.random() < 0.5, (Wish("a", "scale-out", 3, step),)),
    ]  # fmt: skip
    if dice.random() < 0.25:
        return dataclasses.replace(dice.choice(acts), at_ms=at_ms)
    windows = step * dice.choice([9, 10, 10])
    slo = dataclasses.replace(
        SLO, windows=windows, windows_met=dice.choice([None, windows, max(0, windows - 4)]),
        floor_ms=dice.choice([None, 0.0, 250.0]), bound_ms=dice.choice([2000.0, 1500.0]),
    )  # fmt: skip
    mean = dice.choice([20.0, 300.0, 5000.0])
    return batch(
        step, at_ms=at_ms, slo=dice.choice([slo, slo, slo, None]), slots=dice.randint(1, 9),
        latency_ms=dice.choice([Latency(mean, mean, mean, mean, mean)] * 3 + [None]),
        histogram=dice.choice([((305.0, 100),), ((10.0, 99), (9000.0, 1)), ((10.0, 98), (900.0, 2))]),
        arrived=dice.choice([0, 100, 5000]), emitted=dice.randint(0, 50), late=dice.randint(0, 3),
        backlog=dice.choice([0, 40, 90_000]), lag=dice.choice([{}, {"x": 5}, {"x": 7, "y": 8}]),
        duration_ms=dice.choice([5.0, 500.0, 20_000.0]),
    )  # fmt: skip


def test_drawn_histories_are_told_as_recorded(recorded: Recorded) -> None:
    """Batches of any pace; the run begins anew once, and what was before is forgotten."""
    dice, told = random.Random(81), []
    history, at_ms = JournalHistory(), 1_000
    for step in range(150):
        if step in (0, 40):
            history.absorb(dataclasses.replace(START, at_ms=at_ms))
        at_ms += dice.choice([0, 1, 400, 1_000, 1_000, 30_000])
        event = event_at(dice, step, at_ms)
        history.absorb(event)
        if step in (0, 1, 39, 41, 60, 149):
            for points in (2, 9, 2_000) if step == 149 else (5,):
                whole = history.describe("ck", at_ms + 500, DriverSeen(), points)
                told += [f"step {step}, {points} points", *lines(whole["curves"])]
            told += lines([whole["slo"], whole["changes"], whole["rows"][:2], whole["slots"]])
    recorded("drawn-histories", told)


def test_no_more_changes_are_kept_than_are_listed() -> None:
    history = JournalHistory()
    history.absorb(START)
    for step in range(CHANGES_KEPT + 5):
        history.absorb(Retry(step, 1, "worker lost", at_ms=step))
    kept = [change["at_ms"] for change in history.describe("ck", 9, DriverSeen())["changes"]]
    assert kept == list(range(CHANGES_KEPT + 4, 4, -1))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 513])
def test_rows_are_all_there_however_many(count: int) -> None:
    rows = Rows(2)
    for number in range(count):
        rows.add(number, None if number % 2 else -number)
    assert rows.values.shape == (count, 2)
    assert rows.values[:, 0].tolist() == list(range(count))
    assert np.isnan(rows.values[:, 1]).tolist() == [bool(n % 2) for n in range(count)]


@pytest.mark.parametrize("pace_ms", [1, 300, 1_000, 1_001, 7_000])
def test_a_heat_map_loses_no_record_and_puts_none_elsewhere(
    pace_ms: int, recorded: Recorded
) -> None:
    dice, heat, told = random.Random(pace_ms), HeatMap(), []
    total: Counter[tuple[str, int]] = Counter()
    at_ms, when = 5_000, []
    for step in range(300):
        at_ms += dice.choice([0, pace_ms, pace_ms, 2 * pace_ms])
        group, operator = dice.choice([0, 1, 2, 30]), dice.choice("ab")
        late_ms = dice.choice(
            [0, 0, 0, 10_000]
        )  # a line that another thread wrote a little earlier
        heat.add(at_ms - late_ms, GroupRecords(operator, [group, 5], [step % 5, 1]))
        total[operator, group] += step % 5
        total[operator, 5] += 1
        when.append(at_ms - late_ms)
        if step in (0, 3, 4, 5, 20, 100, 299):
            now = heat.describe()
            told.append(f"{step}: {now['began_ms']} {now['column_ms']} {now['groups']}")
            told += [f"  {row['operator']}{row['group']} {row['records']} {len(row['counts'])} "
                     f"{row['counts'][:12]}" for row in now["rows"][:3]]  # fmt: skip
    now = heat.describe()
    assert {(r["operator"], r["group"]): r["records"] for r in now["rows"]} == +total
    assert all(sum(r["counts"]) == r["records"] for r in now["rows"])
    fives = np.zeros(max(len(r["counts"]) for r in now["rows"]), dtype=int)
    for one_ms in when:
        fives[max(0, one_ms - now["began_ms"]) // now["column_ms"]] += 1
    both = [r["counts"] for r in now["rows"] if r["group"] == 5]
    assert fives.tolist() == [sum(counts) for counts in zip(*both, strict=True)]
    recorded(f"heat-{pace_ms}", told)


# --- Shelves --------------------------------------------------------------------------------------------


class Copied:
    """A journal on a store, of which a copy is read."""

    def __init__(self, place: str, path: Path) -> None:
        self.place, self.path, self.error = place, path, ""
        self.asked = 0

    def refresh(self) -> str:
        self.asked += 1
        return self.error


def test_a_journal_whose_place_was_gone_for_a_while_is_read_on(tmp_path: Path) -> None:
    now_ms, place = [10_000], tmp_path / "jobs" / "a"
    path = write(place / "headgate" / "journal.jsonl", [START, batch(0)])
    kept = Shelf([tmp_path], lambda _: DriverSeen(), lambda: now_ms[0])
    (entry,) = kept.index()
    for away in (True, False):
        place.rename(tmp_path / "away") if away else (tmp_path / "away").rename(place)
        now_ms[0] += 1_000
        query = kept.query(entry["id"], 9)
        assert query is not None
        assert ("cannot be read" in query["error"]) is away
    write(path, [batch(1)])
    path.write_bytes(path.read_bytes() + b"{\n")
    for _ in range(2):
        now_ms[0] += 1_000
        query = kept.query(entry["id"], 9)
        assert query is not None
        assert query["curves"]["at_s"] == [2.0, 3.0]
        assert "line 4" in query["error"], "a damaged line is told for good"


def test_a_shelf_lives_on_as_recorded(tmp_path: Path, recorded: Recorded) -> None:
    """Journals come, grow and are damaged, places go, and a store cannot be read for a while."""
    dice, told, now_ms = random.Random(82), [], [100_000]
    copied = Copied("s3://b/k", tmp_path / "copy.jsonl")
    write(copied.path, [START])
    journals = [tmp_path / "jobs" / name / "headgate" / "journal.jsonl" for name in "abc"]
    write(journals[0], [START, batch(0)])
    places: list[Any] = [tmp_path / "jobs", copied]
    kept = Shelf(places, lambda place: DriverSeen(holds="a" in str(place)[-1:]), lambda: now_ms[0])
    for step in range(50):
        now_ms[0] += dice.choice([1, 499, 500, 501, 20_000])
        act = dice.choice(
            ["grow", "grow", "come", "damage", "store", "store is back", "copy", "gone"]
        )
        journal = dice.choice(journals)
        if act in ("grow", "come"):
            write(journal, [batch(step, at_ms=now_ms[0])] if journal.exists() else [START])
        elif act == "damage" and journal.exists() and dice.random() < 0.3:
            journal.write_bytes(journal.read_bytes() + b"{\n")
        elif act in ("store", "store is back"):
            copied.error = "it cannot be read" * (act == "store")
        elif act == "copy":
            write(copied.path, [batch(step, at_ms=now_ms[0])])
        elif act == "gone" and step % 2:
            other = tmp_path / f"away{step % 4}"
            ways = [(tmp_path / "jobs", other), (other, tmp_path / "jobs")]
            first, second = ways[other.exists()]
            if first.exists() and not second.exists():
                first.rename(second)
        entries = kept.index()
        told.append(f"{step} {act} at {now_ms[0]}, store asked {copied.asked}")
        for entry in sorted(entries, key=lambda one: one["place"]):
            shown = [entry[key] for key in ("name", "place", "health", "slots", "limit", "met")]
            query = kept.query(entry["id"], 3)
            assert query is not None
            assert query["id"] == entry["id"]
            seen = [query["error"], query["curves"]["at_s"], str(kept.checkpoint(entry["id"]))]
            told.append(f"  {shown} {seen} {kept.fleet(entry['id'])}".replace(str(tmp_path), ""))
    recorded("lives", told)
    with pytest.raises(CheckpointError):
        Shelf([tmp_path / "none"], lambda _: DriverSeen())


# --- Answers --------------------------------------------------------------------------------------------


def test_an_answer_is_shared_for_as_long_as_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, made = [50.0], Counter[str]()
    monkeypatch.setattr(page, "time", types.SimpleNamespace(monotonic=lambda: now_s[0]))
    dice, answers, kept = random.Random(83), page._Answers(), {}

    def make(name: str) -> dict[str, Any] | None:
        made[name] += 1
        return None if name == "none" else {"name": name, "number": made[name]}

    for _ in range(200):
        now_s[0] += dice.choice([0.0, 0.1, 0.25, 0.5])
        name, before = dice.choice(["a", "b", "none"]), made.copy()
        response = asyncio.run(answers.get(name, lambda name=name: make(name)))
        at_s = kept.get(name, -9.0)
        assert made[name] - before[name] == int(now_s[0] - at_s >= shelf.READ_AGAIN_S)
        if made[name] > before[name] and name != "none":
            kept[name] = now_s[0]
        assert response.status_code == (404 if name == "none" else 200)
        if name != "none":
            assert json.loads(response.body)["number"] == made[name]
    assert set(answers._kept) == {"a", "b"}
    assert not answers._making


def test_texts_of_any_depth_are_bounded() -> None:
    long, cut = "x" * (page.TEXT_MAX + 1), page.shown("x" * (page.TEXT_MAX + 1), page.TEXT_MAX)
    assert cut != long
    value = {
        long: [long, {"a": (long, None)}, 1.5],
        "numbers": [1, 2],
        "none": [],
        "t\x1b": (long, 1),
    }
    told = {cut: [cut, {"a": [cut, None]}, 1.5], "numbers": [1, 2], "none": [], "t\\x1b": (long, 1)}
    value[long] = [*value[long][:2]]  # type: ignore[index]
    told[cut] = [*told[cut][:2]]  # type: ignore[index]
    assert page._bounded(value) == told


def test_a_simulation_is_asked_for_as_recorded(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    told: list[str] = []
    monkeypatch.setattr(questions, "replay", lambda place, **words: {"error": "no model", **words})
    policies = ("", "unified", "threshold(high=0.9)", "own:policy", "nobody", "x" * 90)
    for policy in policies:
        told.append(f"{policy[:20]}: {questions.what_if('ck', slo='s', policy=policy)}")
    for slots in ("", "8", "0", "999999999", "1000000000", "-1", "\u0663", "1.5", " 8"):
        told.append(f"{slots!r}: {questions.what_if('ck', slots_max=slots)}")
    with questions._one_at_a_time:
        told.append(f"{questions.what_if('ck')}")
    told.append(f"{questions.what_if('ck')}")
    recorded("what-if", told)


# --- Clients --------------------------------------------------------------------------------------------


class Transport:
    """A connection that somebody may close."""

    closed = False
    aborted = 0

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.aborted += 1


def test_clients_that_are_stuck_are_hung_up_on() -> None:
    """A request that is being answered has all the time; half of one or an answer not taken has none."""
    dice = random.Random(84)
    for _ in range(200):
        client: Any = page._Protocol.__new__(page._Protocol)
        waits: list[Any] = []
        client.loop = types.SimpleNamespace(call_later=lambda s, do, w=waits: w.append((s, do)))
        client.transport, client._stuck_in, client.cycle = Transport(), None, None
        client.flow = types.SimpleNamespace(write_paused=False)
        before, number = None, 0
        for _ in range(dice.randint(1, 6)):
            if dice.random() < 0.4:
                number += 1
                client.cycle = types.SimpleNamespace(response_complete=False, number=number)
            if client.cycle is not None and dice.random() < 0.4:
                client.cycle.response_complete = True
            client.flow.write_paused = dice.random() < 0.3
            client.transport.closed = dice.random() < 0.05
            stuck = (
                client.cycle is None or client.cycle.response_complete or client.flow.write_paused
            )
            now = (client.cycle and client.cycle.number) if stuck else "working"
            count = len(waits)
            client._watch()
            if client.transport.closed:
                assert (client.transport.aborted, len(waits)) == (0, count)
                break
            if stuck and now == before:
                assert (client.transport.aborted, len(waits)) == (1, count)
                break
            assert (client.transport.aborted, len(waits)) == (0, count + 1)
            assert waits[-1] == (page.PATIENCE_S, client._watch)
            before = now


@pytest.mark.parametrize("more", [0, 1])
def test_a_client_beyond_the_most_is_not_watched(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page.H11Protocol, "connection_made", lambda self, transport: None)
    monkeypatch.setattr(page.resource, "getrlimit", lambda _: (page.FILES_LEFT + 5, 999))
    client: Any = page._Protocol.__new__(page._Protocol)
    waits: list[Any] = []
    client.connections, transport = set(range(5 + more)), Transport()
    client.loop = types.SimpleNamespace(call_later=lambda s, do: waits.append((s, do)))
    client.connection_made(transport)
    assert (transport.aborted, len(waits)) == (more, 1 - more)


@pytest.mark.parametrize(
    ("most", "set_to"), [(resource.RLIM_INFINITY, 65_536), (70_000, 65_536), (4_000, 4_000)]
)
def test_the_page_may_have_as_many_files_as_the_system_allows(
    most: int, set_to: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    class Server:
        def __init__(self, config: Any) -> None:
            asked.append((config.http, config.backlog))

        def run(self, sockets: list[Any]) -> None:
            asked.append(len(sockets))

    monkeypatch.setattr(page.uvicorn, "Server", Server)
    monkeypatch.setattr(page.resource, "getrlimit", lambda _: (256, most))
    monkeypatch.setattr(page.resource, "setrlimit", lambda *limits: asked.append(limits))
    page.serve(Shelf([tmp_path], lambda _: DriverSeen()), "127.0.0.1", 0)
    assert asked == [(resource.RLIMIT_NOFILE, (set_to, most)), (page._Protocol, 100), 1]


def test_only_questions_of_the_page_itself_reach_the_application() -> None:
    reached: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    got: list[Any] = []

    async def send(message: Any) -> None:
        got.append(message)

    only = page._Headers(page._OwnPageOnly(inner), "the policy")
    asked = [
        ("http", "/api/x", None), ("http", "/api/x", b"same-origin"), ("http", "/api/x", b"none"),
        ("http", "/api/x", b"same-site"), ("http", "/", b"cross-site"), ("lifespan", "/api/x", None),
    ]  # fmt: skip
    statuses = []
    for kind, path, site in asked:
        headers = [] if site is None else [(b"sec-fetch-site", site)]
        got.clear()
        asyncio.run(only({"type": kind, "path": path, "headers": headers}, None, send))  # type: ignore[arg-type]
        statuses.append(got[0]["status"])
        assert (b"content-security-policy", b"the policy") in got[0]["headers"]
        assert (b"cache-control", b"no-cache") in got[0]["headers"]
    assert statuses == [200, 200, 200, 403, 200, 200]
    assert reached == ["/api/x", "/api/x", "/api/x", "/", "/api/x"]


def test_viewers_of_one_answer_wait_for_it_and_others_do_not() -> None:
    answers, inside, go_on = page._Answers(), threading.Event(), threading.Event()

    def slow() -> dict[str, int]:
        inside.set()
        go_on.wait()
        return {"a": 1}

    async def look() -> list[Any]:
        viewers = [asyncio.ensure_future(answers.get("a", slow)) for _ in range(2)]
        await asyncio.to_thread(inside.wait)
        assert (await answers.get("b", lambda: {"b": 2})).status_code == 200
        go_on.set()
        return await asyncio.gather(*viewers)

    found = asyncio.run(look())
    assert found[0] is found[1]
