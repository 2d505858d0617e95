"""Runs a proxy of a store's server on loopback that delays and logs each request.

All requests of a client pass the proxy, also those of Spark's state store and the retries of a library,
so that two engines can be compared on one server.
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
"""Hop-by-hop headers of a request or a response."""

_SAID_ANEW = ("content-length", "date", "server")
"""Headers of a response that the proxy sets itself."""

_TIMEOUT_S = 120.0


class Forwarding(BaseHTTPRequestHandler):
    """Forwards each request to a server on loopback, and returns its response."""

    port: int
    """Port of the server."""

    keeps_host = True
    """Whether the server gets the request's host, as a signature may need."""

    delay_s = 0.0
    """Delay of each request, in seconds."""

    noted: IO[str] | None = None
    """File of the log, with a line of JSON per request: ``at_ms``, ``method``, ``bytes``."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def hand_on(self) -> None:
        """Forward the request unchanged, and send the server's response."""
        answer, body = self.ask(self.command, self.path)
        # the response to HEAD has no body, but the length of the object
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.say(answer.status, dict(answer.getheaders()), body, length)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = hand_on

    def ask(self, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Return the server's response to this request, sent with another method and path."""
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
        """Send a response; `length` replaces the body's length."""
        self.send_response(status)
        for key, text in headers.items():
            if key.lower() not in (*_HOP, *_SAID_ANEW):
                self.send_header(key, text)
        self.send_header("Content-Length", str(len(body)) if length is None else length)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def forwarding(handler: type[Forwarding], **of_handler: Any) -> Iterator[str]:
    """Yield the address of a server on loopback with this handler, with some attributes set."""
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
    """Yield the address of a proxy of a server, which delays each request by `delay_s` and logs it.

    Parameters
    ----------
    address : str
        Address of the server, such as ``http://127.0.0.1:PORT``.
    noted : Path
        File of the log, made here; see `Forwarding.noted`.
    """
    port = urlsplit(address).port
    with (
        open(noted, "w", encoding="utf-8", buffering=1) as file,
        forwarding(Forwarding, port=port, delay_s=delay_s, noted=file) as found,
    ):
        yield found
