"""Runs a small S3 on loopback that injects faults of networks and stores on request.

It supports the requests of a checkpoint: conditional writes, ranges, lists and deletion of many objects.
It holds objects in memory, checks no signatures, and runs in threads of this process.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"

LOST, REFUSED_THOUGH_DONE, CONFLICT, BUSY, TORN, LATE, FORBIDDEN, EXPIRED, ELSEWHERE = (
    "lost",  # done, and the connection ends without an answer
    "refused though done",  # done, and answered as a repeated request would be: 412
    "conflict",  # not done: 409, another writer is under way
    "busy",  # not done: 503
    "torn",  # half of it read, then the connection ends
    "late",  # not done, no answer; done when `FaultyS3.deliver` is called
    "forbidden",  # not done: 403
    "expired",  # not done: 400, credentials that were good until now
    "elsewhere",  # not done: 301, the bucket is in another region
)


@dataclass
class S3Fault:
    """Describes a fault of the next `times` requests with a method and key.

    Attributes
    ----------
    kind : str
        One of the names above.
    part : str
        Text that the key must contain.
    """

    kind: str
    method: str = "PUT"
    part: str = ""
    times: int = 1


@dataclass
class FaultyS3:
    """Holds the objects and faults of the server; see `serving`.

    Attributes
    ----------
    objects : dict
        Objects by key, without the bucket.
    faults : list of S3Fault
        Faults that have not occurred yet.
    listed : dict or None
        Objects that a list shows, if not the real ones.
    conditional : bool
        Whether the server obeys ``If-None-Match``.
    requests : list of (method, key)
        All requests so far.
    """

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[S3Fault] = field(default_factory=list)
    listed: dict[str, bytes] | None = None
    conditional: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
    late: list[tuple[str, bytes, bool]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    @property
    def options(self) -> dict[str, str]:
        """Options of a checkpoint's store, without their prefix."""
        return {
            "endpoint": self.endpoint,
            "accessKeyId": "nobody",
            "secretAccessKey": "nothing",
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the same options."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
        }

    def put(self, key: str, data: bytes, *, new: bool) -> bool:
        """Write an object; return whether it was written."""
        with self.lock:
            if new and self.conditional and key in self.objects:
                return False
            self.objects[key] = data
            return True

    def deliver(self) -> list[bool]:
        """Carry out the late writes, and return for each whether it took effect."""
        with self.lock:
            late, self.late = self.late, []
        return [self.put(key, data, new=new) for key, data, new in late]

    def taken(self, method: str, key: str) -> str | None:
        """Record a request, and return the kind of its fault, if any."""
        with self.lock:
            self.requests.append((method, key))
            for fault in self.faults:
                if fault.method == method and fault.part in key:
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                    return fault.kind
        return None


@contextmanager
def serving() -> Iterator[FaultyS3]:
    """Yield a server on loopback with an empty bucket named `BUCKET`."""
    store = FaultyS3()
    server = listening(store)
    store.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()


def listening(store: FaultyS3, port: int = 0) -> ThreadingHTTPServer:
    """Serve a store in a thread; end the server by ``shutdown`` and ``server_close``."""
    handler = type("_Bound", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="faulty-s3", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    store: FaultyS3
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_PUT(self) -> None:
        key, fault = self._asked("PUT")
        length = int(self.headers["Content-Length"])
        if fault == TORN:
            self.rfile.read(length // 2)
            return self._hang_up()
        data = self.rfile.read(length)
        new = self.headers.get("If-None-Match") == "*"
        if fault == LATE:
            self.store.late.append((key, data, new))
            return self._hang_up()
        if fault in (LOST, REFUSED_THOUGH_DONE):
            self.store.put(key, data, new=new)
            if fault == LOST:
                return self._hang_up()
            return self._refuse(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        if self._faulty(fault):
            return None
        if not self.store.put(key, data, new=new):
            return self._refuse(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        return self._answer(HTTPStatus.OK, b"", ETag='"0"')

    def do_GET(self) -> None:
        key, fault = self._asked("GET")
        if self._faulty(fault):
            return None
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(query.get("prefix", [""])[0])
        found = self.store.objects.get(key)
        if found is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "NoSuchKey")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self._object(HTTPStatus.OK, found)
        start, end = int(asked[1]), min(int(asked[2]), len(found) - 1)
        if start >= len(found):
            return self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
        span = f"bytes {start}-{end}/{len(found)}"
        part = found[start : end + 1]
        return self._object(HTTPStatus.PARTIAL_CONTENT, part, **{"Content-Range": span})

    def do_HEAD(self) -> None:
        key, _ = self._asked("HEAD")
        found = self.store.objects.get(key)
        self.send_response(HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK)
        self.send_header("Content-Length", str(len(found or b"")))
        self._dated()
        self.end_headers()

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        _, fault = self._asked("POST")
        if self._faulty(fault):
            return None
        keys = re.findall(r"<Key>(.*?)</Key>", text)
        with self.store.lock:
            for key in keys:
                self.store.objects.pop(key, None)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return self._answer(HTTPStatus.OK, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _list(self, prefix: str) -> None:
        with self.store.lock:
            known = self.store.objects if self.store.listed is None else self.store.listed
            found = sorted(
                (key, len(data)) for key, data in known.items() if key.startswith(prefix)
            )
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>0</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in found
        )
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(found)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        )
        self._answer(HTTPStatus.OK, text.encode())

    def _asked(self, method: str) -> tuple[str, str | None]:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        bucket, _, key = path.partition("/")
        if bucket != BUCKET:
            return key, "no bucket"
        return key, self.store.taken(method, key)

    def _faulty(self, fault: str | None) -> bool:
        """Send the error response of a fault; return whether the fault has one."""
        refusals = {
            CONFLICT: (HTTPStatus.CONFLICT, "ConditionalRequestConflict"),
            BUSY: (HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown"),
            FORBIDDEN: (HTTPStatus.FORBIDDEN, "AccessDenied"),
            EXPIRED: (HTTPStatus.BAD_REQUEST, "ExpiredToken"),
            ELSEWHERE: (HTTPStatus.MOVED_PERMANENTLY, "PermanentRedirect"),
            "no bucket": (HTTPStatus.NOT_FOUND, "NoSuchBucket"),
        }
        if fault is None or fault not in refusals:
            return False
        self._refuse(*refusals[fault])
        return True

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _object(self, status: HTTPStatus, body: bytes, **headers: str) -> None:
        self._answer(status, body, dated=True, **headers)

    def _answer(
        self, status: HTTPStatus, body: bytes, *, dated: bool = False, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if dated:
            self._dated()
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _dated(self) -> None:
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"0"')

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
