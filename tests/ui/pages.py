"""Serves the page as the command does, and asks it."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import uvicorn

from headgate.ui.app import _Protocol, app
from headgate.ui.shelf import Shelf


@contextlib.contextmanager
def serving(shelf: Shelf) -> Iterator[str]:
    """Yield the address of a page as the command serves it."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        config = uvicorn.Config(app(shelf, "127.0.0.1"), http=_Protocol, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
        thread.start()
        try:
            yield f"127.0.0.1:{own.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()
