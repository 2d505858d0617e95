"""Gives the page and what it asks for, to this machine's browsers only unless told otherwise."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.core.errors import ConfigError
from headgate.ui.history import POINTS_MAX
from headgate.ui.questions import checkpoint_content, what_if
from headgate.ui.shelf import Shelf

STATIC = Path(__file__).parent / "static"


def app(shelf: Shelf, host: str) -> Starlette:
    """Return the application.

    Parameters
    ----------
    shelf : Shelf
    host : str
        The host that it is served at. Requests that name another one are refused, so that no page of
        somebody else's reads it through a name of its own (DNS rebinding).
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")

    def index(_: Request) -> Response:
        return HTMLResponse(page)

    def journals(_: Request) -> Response:
        return JSONResponse(shelf.index())

    def query(request: Request) -> Response:
        text = request.query_params.get("points", "")
        points = (
            int(text) if text.isdecimal() and len(text) < len(str(POINTS_MAX)) + 1 else POINTS_MAX
        )
        return _answer(shelf.query(request.path_params["name"], points))

    def fleet(request: Request) -> Response:
        return _answer(shelf.fleet(request.path_params["name"]))

    def checkpoint(request: Request) -> Response:
        place = shelf.checkpoint(request.path_params["name"])
        return _answer(None if place is None else checkpoint_content(place))

    def simulated(request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
            return JSONResponse({"error": "another page asks for this"}, status_code=403)
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
        ],
        middleware=[
            Middleware(
                TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]", host]
            ),
            Middleware(_Headers, policy=_policy(page)),
        ],
    )


def serve(shelf: Shelf, host: str, port: int) -> None:
    """Serve the page until it is interrupted.

    Raises
    ------
    ConfigError
        Nothing can be served there.
    """
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        msg = f"the page cannot be served at {host}:{port}: {error.strerror}; give another address."
        raise ConfigError(msg) from error
    with listening:
        config = uvicorn.Config(app(shelf, host), log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])


def _answer(answer: dict[str, Any] | None) -> Response:
    if answer is None:
        return JSONResponse({"error": "there is no such journal"}, status_code=404)
    return JSONResponse(answer)


def _policy(page: str) -> str:
    """Return the content policy: this page's own files, and its inline script."""
    scripts = re.findall(r"<script type=\"importmap\">(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in hashes)])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class _Headers:
    """Adds to each answer the headers that keep a browser from running anything else.

    Parameters
    ----------
    inner : callable
        The application.
    policy : str
        Its content security policy.
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
