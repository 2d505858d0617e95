"""A real server and a real browser: the page shows a journal, and nothing of it is ever executed."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from journals import SLO, START, batch, write
from pages import get, serving

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import ConfigError
from headgate.journal import (
    ControlAct,
    FleetJobState,
    FleetRound,
    FleetStart,
)
from headgate.report.limits import DriverSeen
from headgate.ui import questions
from headgate.ui.app import serve
from headgate.ui.shelf import Shelf

EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a page about a query whose name and reasons are hostile, and about a fleet."""
    evil = ControlAct("freeze", "user", EVIL, at_ms=3_000)
    parameters = {"slo": ["mean < 1 s over 1 s"]}
    start = replace(START, name=EVIL, parameters=parameters)
    write(tmp_path / "one" / "headgate" / "journal.jsonl", [start, batch(0), evil, batch(1)])
    job = FleetJobState("q5", "running", 30.0, 60.0, False)
    fleet = [
        FleetStart("henge", 8, 10.0, 1, 100),
        FleetRound(9.0, (job,), 30.0, 60.0, 3, 8, True, 110),
    ]
    write(tmp_path / "two" / "fleet.jsonl", fleet)
    shelf = Shelf([tmp_path], lambda _: DriverSeen())
    with serving(shelf) as where:
        yield where


def test_what_the_page_asks_for_is_there(address: str) -> None:
    entries = json.loads(get(address, "/api/journals")[2])
    kinds = {entry["kind"]: entry["id"] for entry in entries}
    status, headers, body = get(address, f"/api/query/{kinds['query']}?points=10")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["diagnosis"]["query"]["name"] == EVIL
    fleet = json.loads(get(address, f"/api/fleet/{kinds['fleet']}")[2])
    assert (fleet["slots"], fleet["jobs"][0]["job"]) == (3, "q5")


def of_query(address: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and content of a question about the query."""
    entries = json.loads(get(address, "/api/journals")[2])
    name = next(entry["id"] for entry in entries if entry["kind"] == "query")
    status, _, body = get(address, path.replace("ID", name), **headers)
    return status, json.loads(body)


def test_a_checkpoint_is_looked_into_and_what_is_none_is_a_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.ui.app.READ_AGAIN_S", 0.0)
    _, told = of_query(address, "/api/checkpoint/ID")
    assert "holds no state" in told["error"]
    Checkpoint(tmp_path / "one").open({"key_groups": 2})
    status, told = of_query(address, "/api/checkpoint/ID")
    assert (status, told["error"]) == (200, "")
    assert told["restart"]["does"] == "begin from nothing"
    shutil.move(tmp_path / "one" / "headgate", tmp_path / "gone")
    _, told = of_query(address, "/api/checkpoint/ID")
    assert "is not a checkpoint of headgate" in told["error"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "has 2 batches in the time asked for; replay 40 or more"),
        ("policy=os:system", 'policy "os:system" is not one of headgate'),
        ("policy=daedalus", 'policy "daedalus" is not one of headgate'),
        ("slots_max=-1", 'slots_max="-1" is no number of slots'),
        ("slots_max=" + "9" * 5000, "is no number of slots"),
    ],
)
def test_what_if_takes_no_code_and_says_what_is_wrong(address: str, words: str, error: str) -> None:
    status, told = of_query(address, f"/api/what-if/ID?{words}")
    assert status == 200
    assert error in told["error"]


def test_another_page_starts_no_simulation_and_one_runs_at_a_time(address: str) -> None:
    for site in ("cross-site", "same-site"):
        assert of_query(address, "/api/what-if/ID", **{"Sec-Fetch-Site": site})[0] == 403
    assert of_query(address, "/api/what-if/ID", **{"Sec-Fetch-Site": "same-origin"})[0] == 200
    with questions._one_at_a_time:
        _, told = of_query(address, "/api/what-if/ID")
    assert "another simulation is under way" in told["error"]


def test_a_run_is_simulated_as_it_might_have_been(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Path, dict[str, Any]]] = []

    def replay(checkpoint: Path, **words: Any) -> dict[str, Any]:
        asked.append((checkpoint, words))
        return {"real": 1, "error": {"success_points": 0.1}}

    monkeypatch.setattr(questions, "replay", replay)
    told = questions.what_if(tmp_path, slo="mean < 1 s over 1 s", policy="static(2)", slots_max="8")
    words = {"slo_text": "mean < 1 s over 1 s", "policy_text": "static(2)", "slots_max": 8}
    assert asked == [(tmp_path, words)]
    assert told == {"real": 1, "error_of_model": {"success_points": 0.1}, "error": ""}


@pytest.mark.parametrize("points", ["", "-1", "x", "9" * 5000, "1", "²"])
def test_no_number_of_points_breaks_it(address: str, points: str) -> None:
    (query,) = (
        e["id"] for e in json.loads(get(address, "/api/journals")[2]) if e["kind"] == "query"
    )
    status, _, body = get(address, f"/api/query/{query}?points={urllib.request.quote(points)}")
    assert status == 200
    assert len(json.loads(body)["curves"]["at_s"]) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/api/query/none",
        "/api/fleet/none",
        "/api/checkpoint/none",
        "/api/what-if/none",
        "/api/query/../../etc/passwd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2f..%2fpyproject.toml",
        "/static//etc/passwd",
        "/journal.jsonl",
    ],
)
def test_nothing_else_is_given_out(address: str, path: str) -> None:
    assert get(address, path)[0] == 404


def test_another_host_is_refused_and_a_browser_runs_only_the_page(address: str) -> None:
    assert get(address, "/api/journals", Host="evil.example")[0] == 400
    status, headers, _ = get(address, "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(f"http://{address}/api/journals", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20)


def test_huge_texts_are_cut_and_control_characters_are_written_out(tmp_path: Path) -> None:
    huge = "A" * 100_000 + "\x1b[2J"
    acts = [ControlAct("freeze", huge, huge, at_ms=3_000 + n) for n in range(50)]
    start = replace(START, name=huge, workload=huge, parameters={"slo": [huge]})
    write(tmp_path / "headgate" / "journal.jsonl", [start, batch(0), *acts])
    shelf = Shelf([tmp_path], lambda _: DriverSeen())
    with serving(shelf) as where:
        _, _, index = get(where, "/api/journals")
        _, _, query = get(where, f"/api/query/{json.loads(index)[0]['id']}")
    for answer in (index, query):
        assert len(answer) < 200_000
        assert "\\u001b" not in answer
        assert "\\\\x1b[2J" in answer


def test_all_viewers_share_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "headgate" / "journal.jsonl", [START, batch(0)])
    shelf = Shelf([tmp_path], lambda _: DriverSeen())
    made: list[str] = []
    query, index = shelf.query, shelf.index
    monkeypatch.setattr(shelf, "query", lambda name, n: made.append(name) or query(name, n))
    monkeypatch.setattr(shelf, "index", lambda: made.append("") or index())
    monkeypatch.setattr("headgate.ui.app.READ_AGAIN_S", 60.0)
    with serving(shelf) as where:
        (entry,) = json.loads(get(where, "/api/journals")[2])
        for _ in range(20):
            assert json.loads(get(where, "/api/journals")[2]) == [entry]
            assert get(where, f"/api/query/{entry['id']}")[0] == 200
            assert get(where, f"/api/fleet/{entry['id']}")[0] == 404
        assert made == ["", entry["id"]]
        for n in range(20):
            assert get(where, f"/api/query/none{n}")[0] == 404
    assert len(made) == 22, "of what is not there nothing is kept"


def test_many_who_look_at_one_journal_keep_nobody_waiting_who_looks_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More viewers than the server has threads wait for an answer that is made once."""
    for name in ("long", "short"):
        write(tmp_path / name / "headgate" / "journal.jsonl", [START, batch(0)])
    shelf = Shelf([tmp_path], lambda _: DriverSeen())
    ids = {Path(entry["place"]).name: entry["id"] for entry in shelf.index()}
    made, is_read, query = [], threading.Event(), shelf.query

    def slow(name: str, points: int) -> dict[str, Any] | None:
        made.append(name)
        assert name != ids["long"] or is_read.wait(30)
        return query(name, points)

    monkeypatch.setattr(shelf, "query", slow)
    monkeypatch.setattr("headgate.ui.app.READ_AGAIN_S", 60.0)
    statuses: list[int] = []
    with serving(shelf) as where:
        path = f"/api/query/{ids['long']}"
        viewers = [
            threading.Thread(target=lambda: statuses.append(get(where, path)[0])) for _ in range(60)
        ]
        leaves = socket.create_connection(("127.0.0.1", int(where.split(":")[1])))
        leaves.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        while not made:
            pass
        leaves.close()
        for viewer in viewers:
            viewer.start()
        assert get(where, f"/api/query/{ids['short']}")[0] == 200
        assert not statuses
        is_read.set()
        for viewer in viewers:
            viewer.join()
    assert statuses == [200] * 60
    assert made == [ids["long"], ids["short"]]


def hung_up_on(address: str, *parts: bytes) -> bytes:
    """What a client reads that sends no whole request, until it is hung up on."""
    host, _, port = address.partition(":")
    read = b""
    with socket.create_connection((host, int(port)), timeout=30) as client:
        for part in parts:
            client.sendall(part)
        with contextlib.suppress(ConnectionResetError):
            while received := client.recv(65_536):
                read += received
    return read


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a page as the command serves it, whose patience is short."""
    monkeypatch.setattr("headgate.ui.app.PATIENCE_S", 0.2)
    write(tmp_path / "headgate" / "journal.jsonl", [START, batch(0)])
    shelf = Shelf([tmp_path], lambda _: DriverSeen())
    with serving(shelf) as where:
        yield where


def test_half_a_request_keeps_no_connection(served: str) -> None:
    assert hung_up_on(served) == b""
    assert hung_up_on(served, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX:") == b""
    whole = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert hung_up_on(served, whole, b"GET / HT").startswith(b"HTTP/1.1 200 OK")
    assert get(served, "/api/journals")[0] == 200


def test_a_client_above_the_most_is_hung_up_on(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.ui.app.FILES_LEFT", 10**9)
    assert hung_up_on(served, b"") == b""
    monkeypatch.undo()
    assert get(served, "/api/journals")[0] == 200


def test_a_taken_address_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        port = own.getsockname()[1]
        shelf = Shelf([tmp_path], lambda _: DriverSeen())
        with pytest.raises(ConfigError, match=f"cannot be served at 127.0.0.1:{port}"):
            serve(shelf, "127.0.0.1", port)


def dom_of(address: str, browser: str, profile: Path) -> tuple[str, str]:
    """What a browser makes of the page of the only query, and what it says meanwhile."""
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    command = [browser, *flags.split(), "--no-proxy-server", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom"]
    (query,) = (
        e["id"] for e in json.loads(get(address, "/api/journals")[2]) if e["kind"] == "query"
    )
    command.append(f"http://{address}/#{query}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_a_browser_shows_the_journal_and_executes_nothing_of_it(
    address: str, browser: str, tmp_path: Path
) -> None:
    shown, said = dom_of(address, browser, tmp_path / "profile")
    assert "Is the SLO met?" in shown
    assert "as a table</summary>" in shown
    assert "the hottest is group 3 of a with 70 %" in shown
    assert "&lt;script&gt;document.title='broken'" in shown
    assert "<title>broken" not in shown
    assert "CONSOLE" not in said, said


class Tables(HTMLParser):
    """Rows of cells of all tables that have a caption, by caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._tag = ""
        self._table: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        if tag == "table":  # the legend of a chart is one, too, without a caption
            self._table = []
        elif tag == "tr":
            self._table.append([])
        elif tag in {"th", "td"}:
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "caption":
            self.rows[data] = self._table
        elif self._tag in {"th", "td"}:
            self._table[-1][-1] += data


@pytest.mark.slow
def test_the_table_of_each_chart_has_the_numbers_of_the_journal_and_no_empty_cell(
    browser: str, tmp_path: Path
) -> None:
    """An earlier release did not say of which operator a slot is; no source says what waits there."""
    slots = tuple(replace(stats, operator="") for stats in batch(0).slot_stats)
    old = {"slot_stats": slots, "lag": {}}
    met, half = (replace(SLO, windows=n, windows_met=m) for n, m in ((100, 97), (104, 99)))
    batches = [
        batch(0, slo=met, **old),
        batch(1, slo=half, arrived=250, duration_ms=0.125, **old),
    ]
    write(tmp_path / "ck" / "headgate" / "journal.jsonl", [START, *batches])
    with serving(Shelf([tmp_path], lambda _: DriverSeen())) as address:
        rows = Tables(dom_of(address, browser, tmp_path / "profile")[0]).rows
    first, second = "1970-01-01 00:00:02", "1970-01-01 00:00:03"
    floor = f"{SLO.floor_ms:,g}"
    assert rows == {
        "Latency (ms), newest first": [
            ["time", "mean", "p99", "bound", "floor"],
            [second, "300", "300", f"{SLO.bound_ms:,g}", floor],
            [first, "300", "300", f"{SLO.bound_ms:,g}", floor],
        ],
        "Records (per s), newest first": [
            ["time", "in", "out", "late"],
            [second, "250", "10", "1"],
            [first, "100", "10", "1"],
        ],
        "Waiting (records), newest first": [
            ["time", "in slots", "at the source"],
            [second, "5", "–"],
            [first, "5", "–"],
        ],
        "Slots (slots), newest first": [["time", "slots"], [second, "2"], [first, "2"]],
        "Duration of a batch (ms), newest first": [
            ["time", "batch"],
            [second, "0.13"],
            [first, "500"],
        ],
        "Windows met (share), newest first": [["time", "met"], [second, "50 %"], [first, "97 %"]],
        "Key groups, hottest first": [
            ["operator", "key group", "records", "share", "in the last 1 s"],
            ["a", "3", "140", "70 %", "70"],
            ["a", "9", "60", "30 %", "30"],
        ],
        "Slots of operators that read a source, busiest first": [
            ["operator", "slot", "records", "share", "waiting"],
            ["–", "0", "140", "70 %", "5"],
            ["–", "1", "60", "30 %", "0"],
        ],
    }
