"""A hop before a store's server on loopback: makes each request take longer, and writes it down.

Whatever a client does passes it, Spark's own state store and what a library tries again, so that two
engines can be compared on one server.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

_HOP = ("connection", "expect", "transfer-encoding")
"""Headers of a request or an answer that are for one hop."""

_SAID_ANEW = ("content-length", "date", "server")
"""Headers of an answer that this hop says by itself."""

_TIMEOUT_S = 120.0


class Forwarding(BaseHTTPRequestHandler):
    """Hands each request on to a server on loopback, and its answer back."""

    port: int
    """Of that server."""

    keeps_host = True
    """Whether the server is told which host was asked for, as a signature may need."""

    delay_s = 0.0
    """What each request takes longer."""

    noted: IO[str] | None = None
    """Where each request is written down, a line of JSON: ``at_ms``, ``method``, ``bytes``."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def hand_on(self) -> None:
        """Ask the server as this was asked, and answer as it does."""
        answer, body = self.ask(self.command, self.path)
        # what is not there has a length, too
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.say(answer.status, dict(answer.getheaders()), body, length)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = hand_on

    def ask(self, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Return the server's answer to this request, put in other words."""
        began_ms = time.time() * 1e3
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        dropped = _HOP if self.keeps_host else (*_HOP, "host")
        given = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        if self.delay_s:
            time.sleep(self.delay_s)
        inner = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        try:
            inner.request(method, path, body=body, headers=given)
            answer = inner.getresponse()
            found = answer.read()
        finally:
            inner.close()
        if self.noted is not None:
            note = {"at_ms": round(began_ms, 3), "method": self.command, "bytes": len(body)}
            self.noted.write(f"{json.dumps(note)}\n")
        return answer, found

    def say(
        self, status: int, headers: Mapping[str, str], body: bytes, length: str | None = None
    ) -> None:
        """Answer; `length` where that is not the body's."""
        self.send_response(status)
        for key, text in headers.items():
            if key.lower() not in (*_HOP, *_SAID_ANEW):
                self.send_header(key, text)
        self.send_header("Content-Length", str(len(body)) if length is None else length)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def forwarding(handler: type[Forwarding], **of_handler: Any) -> Iterator[str]:
    """Yield the address of a server on loopback with such a handler, with some of its attributes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (handler,), of_handler))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="forwarding", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def delayed(address: str, delay_s: float, noted: Path) -> Iterator[str]:
    """Yield another address of a server, where each request takes `delay_s` longer and is written down.

    Parameters
    ----------
    address : str
        As ``http://127.0.0.1:PORT``.
    noted : Path
        A file that is made; see `Forwarding.noted`.
    """
    port = urlsplit(address).port
    with (
        open(noted, "w", encoding="utf-8", buffering=1) as file,
        forwarding(Forwarding, port=port, delay_s=delay_s, noted=file) as found,
    ):
        yield found
