"""Commands from the page at each bound, just below and just beyond it, as recorded."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from journals import START, batch, write
from starlette.requests import Request

from headgate.core.input import KEY_GROUPS_MAX
from headgate.report.limits import DriverSeen
from headgate.ui import control
from headgate.ui.control import PageCommands, Sent, _Thaw
from headgate.ui.shelf import Shelf

Recorded = Callable[[str, Iterable[str]], None]
HOST = "127.0.0.1:9096"


def body(act: str, **fields: Any) -> bytes:
    return json.dumps({"act": act, "reason": "r", **fields}).encode()


def padded(length: int) -> bytes:
    """A command of so many bytes: JSON may end in blanks."""
    return body("thaw").ljust(length)


BODIES = {
    **{f"a reason of {n}": body("thaw", reason="x" * n) for n in (0, 1, 499, 500, 501)},
    **{f"a reason of {n} blanks": body("thaw", reason=" " * n) for n in (1, 500)},
    **{
        f"slots={n}": body("scale", slots=n)
        for n in (-1, 0, 1, KEY_GROUPS_MAX, KEY_GROUPS_MAX + 1)
    },
    **{f"epoch={n}": body("rollback", epoch=n) for n in (-1, 0, 1, 10**18, 10**18 + 1000)},
    **{f"{n} bytes": padded(n) for n in (4095, 4096, 4097, 9000)},
    **{f"for {text!r}": body("freeze", **{"for": text}) for text in ("", "2h", "0 s", "x")},
    **{f"held {text!r}": body("scale", slots=3, operator="a", hold=text) for text in ("", "9min")},
    "to stop": body("stop"),
}  # fmt: skip


class Page:
    """Sends commands to some queries, of which each answers at once."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
        for number in range(count):
            write(place / f"ck{number}" / "headgate" / "journal.jsonl", [START, batch(0)])
        self.shelf = Shelf([place], lambda _: DriverSeen())
        self.names = sorted(entry["id"] for entry in self.shelf.index())
        self.commands = PageCommands(self.shelf, "token")
        self.asked: list[str] = []

        def ask(place: Path, act: str, *, reason: str, arguments: dict[str, Any]) -> dict[str, str]:
            told = re.sub(r"'until_s': [0-9.]+", "'until_s': a time", str(arguments))
            self.asked.append(f"{act} {len(reason)} {told}")
            return {"detail": f"so it is, number {len(self.asked)}"}

        def stop(place: Path, *, reason: str) -> dict[str, str]:
            return ask(place, "stop", reason=reason, arguments={})

        monkeypatch.setattr(control.scenarios, "ask", ask)
        monkeypatch.setattr(control.scenarios, "stop", stop)

    def send(self, raw: bytes, name: str = "", part: int = 1000, **changed: str) -> str:
        """Return status and content of the answer to a request that comes in parts."""
        headers = {
            "host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin",
            "content-type": "application/json", "x-headgate-token": "token",
        } | changed  # fmt: skip
        scope = {
            "type": "http", "method": "POST", "path": "/", "query_string": b"",
            "path_params": {"name": name or self.names[0]},
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        }  # fmt: skip
        parts = [raw[at : at + part] for at in range(0, len(raw), part)] or [b""]

        async def receive() -> dict[str, Any]:
            piece = parts.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(parts)}

        answer = asyncio.run(self.commands.take(Request(scope, receive)))
        return f"{answer.status_code} {bytes(answer.body).decode()}"


def test_commands_at_their_bounds_are_answered_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    page, lines = Page(tmp_path, monkeypatch), []
    for name, raw in BODIES.items():
        before = len(page.asked)
        lines += [f"{name}: {page.send(raw)}", *(f"  {asked}" for asked in page.asked[before:])]
    for header in ("content-type", "sec-fetch-site", "origin", "x-headgate-token"):
        lines.append(f"another {header}: {page.send(body('thaw'), **{header: 'text/plain'})}")
    lines.append(f"no query: {page.send(body('thaw'), 'none')}")
    recorded("commands-at-bounds", lines)


def test_the_newest_commands_of_a_query_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    page, lines = Page(tmp_path, monkeypatch, 2), []
    for slots in range(1, 24):
        page.send(body("scale", slots=slots))
        if slots in (1, 19, 20, 21, 23):
            told = [page.commands.describe(name)["sent"] for name in page.names]  # type: ignore[index]
            lines += [f"{[one['what'] for one in sent]}" for sent in told]
            lines.append(str({key: told[0][0][key] for key in ("reason", "state", "text")}))
    recorded("commands-listed", lines)


def test_so_many_commands_of_all_queries_wait_for_an_answer_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    page, lines = Page(tmp_path, monkeypatch, 20), []
    waiting = page.commands._sent
    for count in range(14, 18):
        waiting.clear()
        for name in page.names[1 : count + 1]:
            waiting[name] = [
                Sent(_Thaw("r"), 1, 0, waits=False, state="refused"), Sent(_Thaw("r"), 1, 0)
            ]  # fmt: skip
        lines.append(f"{count} wait: {page.send(body('thaw'))}")
        lines.append(f"  of one of them: {page.send(body('stop'), page.names[1])}")
    recorded("commands-that-wait", lines)
