"""Sends commands of a person at the page to queries, by the functions of the command line alone.

A browser runs pages of strangers beside this one, so a command needs all of these: the token that was
printed when the server started, this page's own origin, JSON, and a reason. See docs/design/0300.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from headgate import scenario as scenarios
from headgate.core.errors import ConfigError, EngineError, HeadgateError
from headgate.core.input import KEY_GROUPS_MAX, finite, shown
from headgate.core.stores import store_url
from headgate.journal.hosts import MigrationStep
from headgate.journal.schema import AssignmentChange
from headgate.journal.writer import wall_clock_ms
from headgate.ui.history import JournalHistory
from headgate.ui.shelf import Book, Shelf

TOKEN_HEADER = "x-headgate-token"
"""Header with a request's token; a token in an address would be in logs and histories."""

BODY_MAX = 4_096
"""Largest command, in bytes."""

BODY_S = 10.0
"""Longest time to receive a command, in s. Chosen."""

REASON_MAX = 500
"""Longest reason, in characters: the limit of control files."""

UNDER_WAY_MAX = 16
"""Most commands that wait for an answer at a time: each takes a thread, and viewers need some, too."""

SENT_KEPT = 20
"""Newest commands to a query that the page lists."""


class _Command(msgspec.Struct, tag_field="act", forbid_unknown_fields=True):
    """Holds a command as the page sends it; an empty text means that the user typed nothing."""

    reason: str

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for the control file; raises `ConfigError`: out of range, or no time."""
        return {}

    def __str__(self) -> str:
        return str(self.__struct_config__.tag)


class _Freeze(_Command, tag="freeze", rename={"for_": "for"}):
    for_: str = ""

    def arguments(self) -> dict[str, Any]:
        return scenarios.freeze_arguments(self.for_ or None)

    def __str__(self) -> str:
        return f"freeze for {self.for_}" if self.for_ else "freeze"


class _Thaw(_Command, tag="thaw"):
    pass


class _Stop(_Command, tag="stop"):
    pass


class _Rollback(_Command, tag="rollback"):
    epoch: int

    def arguments(self) -> dict[str, Any]:
        return {"epoch": finite(self.epoch, "epoch", 0)}

    def __str__(self) -> str:
        return f"rollback to epoch {self.epoch}"


class _Scale(_Command, tag="scale"):
    slots: int
    operator: str = ""
    hold: str = ""

    def arguments(self) -> dict[str, Any]:
        finite(self.slots, "slots", 1, KEY_GROUPS_MAX)
        return scenarios.scale_arguments(self.slots, self.operator or None, self.hold or None)

    def __str__(self) -> str:
        of = f" of {self.operator}" if self.operator else ""
        return f"scale{of} to {self.slots} slots" + (f", held for {self.hold}" if self.hold else "")


_decoder = msgspec.json.Decoder(_Freeze | _Thaw | _Rollback | _Scale | _Stop)


@dataclass
class Sent:
    """Holds a command that was sent, until the journal shows it in force."""

    command: _Command
    asked_ms: int
    acts_before: int
    """Acts in the journal before the command."""
    waits: bool = True
    """Whether a thread waits for the answer."""
    state: str = "requested"
    """``requested``, ``taken up``, ``in force`` or ``refused``."""
    text: str = ""

    def look(self, history: JournalHistory) -> None:
        """Update the state from the journal's acts since the command."""
        act = str(self.command.__struct_config__.tag)
        since, changed = history.acts_count - self.acts_before, set()
        for event in list(history.acts)[-since:] if since > 0 else ():
            if self.state in {"refused", "in force"}:
                return
            if isinstance(event, MigrationStep):
                if self.state == "taken up" and self._concerns(event.operator):
                    self.state, self.text = "refused", f"{event.operator}: {event.why}"
            elif event.reason != self.command.reason:
                continue
            elif isinstance(event, AssignmentChange):
                changed.add(event.operator)
                if act in {"scale", "rollback"} and self._is_done(changed, history):
                    self.state = "in force"
            elif event.act == act and event.refused is not None:
                self.state, self.text = "refused", event.refused
            elif event.act == act:
                self.state = "in force" if act in {"freeze", "thaw"} else "taken up"
                self.text = event.detail
        if act == "stop" and self.state == "taken up" and history.reading.run.stop is not None:
            self.state = "in force"

    def _concerns(self, operator: str) -> bool:
        """Return whether the command changes the slots of an operator, perhaps with others."""
        one = self.command.operator if isinstance(self.command, _Scale) else ""
        return isinstance(self.command, _Scale | _Rollback) and one in {"", operator}

    def _is_done(self, changed: set[str], history: JournalHistory) -> bool:
        """Return whether the changes of all operators of the command are in force."""
        start = history.reading.run.start
        # an early release names no operator; a query of pools has no key groups, and names stages
        if "" in changed or start is None or start.key_groups == 0:
            return True
        return all(one.id in changed for one in start.operators if self._concerns(one.id))


class PageCommands:
    """Takes commands to the queries of a shelf.

    `token`: secret that a request must have.
    """

    def __init__(self, shelf: Shelf, token: str) -> None:
        self._shelf = shelf
        self._token = token.encode()
        self._sent: dict[str, list[Sent]] = {}
        self._lock = threading.Lock()

    async def take(self, request: Request) -> Response:
        """Send the command of a request to its query; the answer is its result, or why it failed."""
        refused = self._refusal(request.headers)
        if refused is not None:
            return _failed(403, refused)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _failed(415, "a command is JSON: send the content type application/json.")
        if request.url.query:
            return _failed(400, "a command has no query in its address; send all in the body.")
        name = request.path_params["name"]
        try:
            async with asyncio.timeout(BODY_S):
                body = b""
                async for part in request.stream():
                    body += part
                    if len(body) > BODY_MAX:
                        return _failed(413, f"a command has at most {BODY_MAX:,} bytes.")
            return await run_in_threadpool(self._send, name, body)
        except (TimeoutError, ClientDisconnect):
            return _failed(408, f"the command did not come within {BODY_S:g} s; send it again.")
        except HeadgateError as error:
            return _failed(200, str(error))  # as for all requests of the page: an answer in words

    def describe(self, name: str) -> dict[str, Any] | None:
        """Return error (why no command can be sent, or empty), operators, and the commands sent."""
        book = self._shelf.book(name)
        if book is None:
            return None
        with book.lock:
            history, start = book.history, book.history.reading.run.start
            sent = list(self._sent.get(name, ()))
            for one in sent:
                one.look(history)
        return {
            "error": _obstacle(book),
            "operators": [operator.id for operator in start.operators] if start else [],
            "sent": [
                {
                    "what": str(one.command),
                    "reason": one.command.reason,
                    "at_ms": one.asked_ms,
                    "state": one.state,
                    "text": one.text,
                }
                for one in reversed(sent)
            ],
        }

    def _refusal(self, headers: Headers) -> str | None:
        """Return why a request is not from this page; the host is checked already."""
        if headers.getlist("sec-fetch-site") != ["same-origin"]:
            return "another page asks for this, or a browser that does not say which one asks."
        if headers.getlist("origin") != [f"http://{headers.get('host')}"]:
            return "another origin asks for this; commands come from this page alone."
        given = ",".join(headers.getlist(TOKEN_HEADER)).encode()
        if not hmac.compare_digest(given, self._token):
            return "the token is missing or wrong; open the address that headgate ui --control printed."
        return None

    def _send(self, name: str, body: bytes) -> Response:
        """Send a command, and wait for its answer as the command line does."""
        book = self._shelf.book(name)
        if book is None:
            return _failed(404, "there is no such query.")
        command, arguments = _read(body)
        obstacle = _obstacle(book)
        if obstacle:
            raise ConfigError(obstacle)
        sent = self._begun(name, book, command)
        act = str(command.__struct_config__.tag)
        try:
            if act == "stop":
                done = scenarios.stop(book.checkpoint, reason=command.reason)
            else:
                place = book.checkpoint
                done = scenarios.ask(place, act, reason=command.reason, arguments=arguments)
            sent.state, sent.text = "taken up", done["detail"]
        except EngineError as error:
            # a request without an answer stays in the checkpoint; a request to stop is withdrawn
            sent.state, sent.text = "refused" if act == "stop" else "requested", str(error)
            raise
        except Exception as error:
            sent.state, sent.text = "refused", str(error)
            raise
        finally:
            sent.waits = False
        return JSONResponse({"error": "", "state": sent.state, "text": shown(sent.text, 1_000)})

    def _begun(self, name: str, book: Book, command: _Command) -> Sent:
        """Add a command to the list; raises `ConfigError`: it waits already, or too many commands do."""
        with book.lock:
            book.refresh(wall_clock_ms())
            seen = book.history.acts_count
        with self._lock:
            sent = self._sent.setdefault(name, [])
            for one in sent:
                if one.waits or (one.state == "requested" and one.command == command):
                    msg = (
                        f'"{one.command}" is requested already; wait until the query has answered.'
                    )
                    raise ConfigError(msg)
            if sum(one.waits for every in self._sent.values() for one in every) >= UNDER_WAY_MAX:
                msg = f"{UNDER_WAY_MAX} commands wait for an answer; send this one later."
                raise ConfigError(msg)
            sent.append(Sent(command, wall_clock_ms(), seen))
            del sent[:-SENT_KEPT]
            return sent[-1]


def _read(body: bytes) -> tuple[_Command, dict[str, Any]]:
    """Return a command and its arguments; raises `ConfigError`: it cannot be read, or is wrong."""
    try:
        command = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        msg = f"the command cannot be read ({shown(str(error), 160)}); load the page again."
        raise ConfigError(msg) from error
    if not command.reason.strip() or len(command.reason) > REASON_MAX:
        msg = f"a reason of 1 to {REASON_MAX} characters is needed; it goes into the journal."
        raise ConfigError(msg)
    return command, command.arguments()


def _obstacle(book: Book) -> str:
    """Return why no command can be written to a checkpoint; empty without a known reason."""
    place = book.checkpoint
    if store_url(place) is not None:
        return ""  # only a write can tell
    if place == book.path:
        return f"the journal {shown(place)} lies without its checkpoint, so nobody can be asked."
    for directory in (Path(place) / "headgate" / "control", Path(place) / "headgate"):
        if directory.exists():
            break
    if os.access(directory, os.W_OK):
        return ""
    return f"{shown(directory)} cannot be written, so commands are not possible; ask its owner."


def _failed(status: int, why: str) -> Response:
    return JSONResponse({"error": shown(why, 1_000)}, status_code=status)
