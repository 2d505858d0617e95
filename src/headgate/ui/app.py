"""Serves the page and its data, to this machine's browsers only unless another host is named."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import re
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headgate.core.errors import ConfigError
from headgate.core.input import shown
from headgate.ui.control import PageCommands
from headgate.ui.history import POINTS_MAX
from headgate.ui.questions import checkpoint_content, what_if
from headgate.ui.shelf import READ_AGAIN_S, Shelf

STATIC = Path(__file__).parent / "static"

TEXT_MAX = 1_000
"""Longest text of a journal that the page gets, in characters; a longer text loses its middle."""

PATIENCE_S = 10.0
"""Time between two looks at a connection, in s. The server hangs up on a client that is stuck at two
looks in a row: it sends half a request, or takes nothing of its answer. Chosen."""

FILES_MAX = 65_536
"""Limit of open files that the server sets, where the system allows so many."""

FILES_LEFT = 200
"""Open files reserved for other use than connections: the server hangs up on a client beyond. Must be
more than `_BACKLOG`, the connections that the server accepts at once."""

_BACKLOG = 100


def app(shelf: Shelf, host: str, token: str | None = None) -> Starlette:
    """Return the application.

    `host`: the server's host. The application refuses requests that name another host, so that a
    foreign page cannot read its data through a host name of its own (DNS rebinding). `token`: secret
    that a command must have; None: there are no commands.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    answers = _Answers()
    control = None if token is None else PageCommands(shelf, token)

    def content(name: str, points: int) -> dict[str, Any] | None:
        told = shelf.query(name, points)
        if told is None or control is None:
            return told
        return told | {"control": control.describe(name)}

    def index(_: Request) -> Response:
        return HTMLResponse(page)

    async def journals(_: Request) -> Response:
        return await answers.get("", shelf.index)

    async def query(request: Request) -> Response:
        text = request.query_params.get("points", "")
        points = (
            int(text) if text.isdecimal() and len(text) < len(str(POINTS_MAX)) + 1 else POINTS_MAX
        )
        name = request.path_params["name"]
        if points < POINTS_MAX:
            return await run_in_threadpool(lambda: _answer(content(name, points)))
        return await answers.get(f"query {name}", lambda: content(name, points))

    async def fleet(request: Request) -> Response:
        name = request.path_params["name"]
        return await answers.get(f"fleet {name}", lambda: shelf.fleet(name))

    async def checkpoint(request: Request) -> Response:
        name = request.path_params["name"]
        place = shelf.checkpoint(name)
        return await answers.get(
            f"checkpoint {name}", lambda: None if place is None else checkpoint_content(place)
        )

    def simulated(request: Request) -> Response:
        place, words = shelf.checkpoint(request.path_params["name"]), request.query_params
        asked = {key: words.get(key, "") for key in ("slo", "policy", "slots_max")}
        return _answer(None if place is None else what_if(place, **asked))

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/journals", journals),
            Route("/api/query/{name:str}", query),
            Route("/api/fleet/{name:str}", fleet),
            Route("/api/checkpoint/{name:str}", checkpoint),
            Route("/api/what-if/{name:str}", simulated),
            Mount("/static", StaticFiles(directory=STATIC)),
            *(
                [Route("/api/control/{name:str}", control.take, methods=["POST"])]
                if control is not None
                else ()
            ),
        ],
        middleware=[
            Middleware(
                TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]", host]
            ),
            Middleware(_Headers, policy=_policy(page)),
            Middleware(_OwnPageOnly),
        ],
    )


def serve(shelf: Shelf, host: str, port: int, token: str | None = None) -> None:
    """Serve the page until an interrupt. Raises `ConfigError`: the address cannot be used.

    `token`: as of `app`.
    """
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        msg = f"the page cannot be served at {host}:{port}: {error.strerror}; give another address."
        raise ConfigError(msg) from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    with listening:
        gc.set_threshold(100_000)  # an event is a thousand small tuples, in no cycle
        # reads a long journal while the browser opens, not at its first request
        threading.Thread(target=shelf.index, daemon=True).start()
        config = uvicorn.Config(
            app(shelf, host, token),
            http=_Protocol,
            backlog=_BACKLOG,
            log_level="warning",
            proxy_headers=False,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _answer(answer: Any) -> Response:
    if answer is None:
        return JSONResponse({"error": "there is no such journal"}, status_code=404)
    return JSONResponse(_bounded(answer))


def _bounded(value: Any) -> Any:
    """Return an answer with texts of at most `TEXT_MAX` and without control characters."""
    if isinstance(value, str):
        return shown(value, TEXT_MAX)
    if isinstance(value, dict):
        return {shown(key, TEXT_MAX): _bounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[-1], int | float)):
        return [_bounded(part) for part in value]
    return value


class _Answers:
    """Stores each answer until its journal may be read again, so that viewers share the answer.

    A viewer who comes while an answer is made waits without a thread. Threads are few: so viewers of
    one long journal do not delay viewers of another.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Response]] = {}
        self._making: dict[str, asyncio.Future[Response]] = {}

    async def get(self, name: str, make: Callable[[], Any]) -> Response:
        """Return the stored answer of a name, or make a new one; an error is not stored."""
        kept = self._kept.get(name)
        if kept and time.monotonic() - kept[0] < READ_AGAIN_S:
            return kept[1]
        if name not in self._making:
            self._making[name] = asyncio.ensure_future(self._made(name, make))
        # a viewer who leaves does not end the work for others
        return await asyncio.shield(self._making[name])

    async def _made(self, name: str, make: Callable[[], Any]) -> Response:
        try:
            response = await run_in_threadpool(lambda: _answer(make()))
            if response.status_code == 200:  # noqa: PLR2004 - a number of HTTP
                self._kept[name] = time.monotonic(), response
            return response
        finally:
            del self._making[name]


def _policy(page: str) -> str:
    """Return the content security policy: allows this page's own files, and its inline script."""
    scripts = re.findall(r"<script type=\"importmap\">(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in hashes)])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class _OwnPageOnly:
    """Refuses requests of other pages: they cost time, though a browser hides the answers from them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/"):
            site = Request(scope).headers.get("sec-fetch-site", "none")
            if site not in {"same-origin", "none"}:
                refused = JSONResponse({"error": "another page asks for this"}, status_code=403)
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


_WORKING = object()


class _Protocol(H11Protocol):
    """Hangs up on a client that sends half a request, or takes nothing of its answer.

    Otherwise such clients would use up the connections that a process may have.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch a connection."""
        super().connection_made(transport)
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_LEFT:
            transport.abort()
            return
        self._stuck_in: object = None  # the cycle of the latest request: no request yet
        self.loop.call_later(PATIENCE_S, self._watch)

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        stuck = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
        if stuck and self.cycle is self._stuck_in:
            self.transport.abort()
            return
        self._stuck_in = self.cycle if stuck else _WORKING
        self.loop.call_later(PATIENCE_S, self._watch)


class _Headers:
    """Adds headers to each answer that keep a browser from running foreign code.

    `inner` (callable): the application. `policy`: its content security policy.
    """

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self._app = app
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await self._app(scope, receive, with_headers)
