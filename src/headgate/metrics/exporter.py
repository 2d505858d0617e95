"""Serves the metrics of journals to Prometheus; only this room knows prometheus-client."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from headgate.core.errors import CheckpointError, ConfigError, HeadgateError
from headgate.core.input import is_loopback, shown
from headgate.journal.fleet import FleetStart
from headgate.journal.reader import CopiedJournal, Tail, journals_below
from headgate.metrics.families import fleet_families, query_families
from headgate.metrics.totals import FleetTotals, QueryTotals

PATIENCE_S = 10.0
"""Longest wait for a client to send data, or to take data, on a connection, in s. Chosen."""

CLIENTS_MAX = 100
"""Clients that the server answers at the same time. Chosen: a Prometheus needs one."""


LABEL_MAX = 200
"""Longest label, in characters; a longer label loses its middle. Chosen."""


class Serving:
    """Serves metrics until it is closed.

    Attributes
    ----------
    port : int    The server's port; where 0 was asked for, the port that the system chose.
    """

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.port = server.server_port

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class JournalMetrics(Collector):
    """Collects the metrics of journals; each scrape reads the lines written since the last scrape.

    A damaged journal keeps the values of its last sound line, and `broken` reports it.

    `places` (iterable of path or CopiedJournal): checkpoints, journals, or directories with
    checkpoints, where each scrape looks for new journals; for a checkpoint on a store, its copied
    journal. Raises `CheckpointError`: there is nothing at a place.

    Attributes
    ----------
    places : list of path
    """

    def __init__(self, places: Iterable[str | os.PathLike[str] | CopiedJournal]) -> None:
        self.places = list(places)
        self._tails: dict[Path, Tail] = {}
        self._copied: dict[Path, CopiedJournal] = {}
        self._away: dict[Path, str] = {}
        self._totals: dict[Path, QueryTotals | FleetTotals] = {}
        self._broken: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._look_for_journals()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as prometheus-client asks for them."""
        with self._lock:
            self._look_for_journals((CheckpointError,))
            for path in self._tails:
                self._read(path)
            queries = {n: t for n, t in self._named() if isinstance(t, QueryTotals)}
            fleets = {n: t for n, t in self._named() if isinstance(t, FleetTotals)}
            for family in (*query_families(queries), *fleet_families(fleets)):
                family.samples = [_bounded(sample) for sample in family.samples]
                yield family

    @property
    def broken(self) -> list[str]:
        """Return a sentence for each journal that cannot be read to its end."""
        return [*self._broken.values(), *filter(None, self._away.values())]

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(_registry(self)).decode()

    def add(self, place: str | os.PathLike[str]) -> None:
        """Collect from another place too."""
        self.places.append(place)

    def remove(self, place: str | os.PathLike[str]) -> None:
        """Remove a journal that is itself one of `places`."""
        with self._lock:
            if place in self.places:
                self.places.remove(place)
            self._tails.pop(Path(place), None)
            self._totals.pop(Path(place), None)
            self._broken.pop(Path(place), None)

    def serve(self, host: str, port: int) -> Serving:
        """Serve the metrics in a new thread.

        Raises `ConfigError`: the address cannot be used.
        """
        try:
            server = _Server((host, port), _Handler)
        except OSError as error:
            msg = f"metrics cannot be served at {host}:{port}: {error.strerror}; give another address."
            raise ConfigError(msg) from error
        app = make_wsgi_app(_registry(self))
        server.set_app(_named_here(app, host) if is_loopback(host) else app)
        thread = threading.Thread(target=server.serve_forever, name="headgate-metrics", daemon=True)
        thread.start()
        return Serving(server, thread)

    def _look_for_journals(self, passed_over: tuple[type[Exception], ...] = ()) -> None:
        """Look for new journals; a place that raises one of `passed_over` keeps its values."""
        for place in self.places:
            if not isinstance(place, str | os.PathLike):
                if place.path not in self._tails:
                    self._tails[place.path] = Tail(place.path, place.place)
                    self._copied[place.path] = place
                continue
            with contextlib.suppress(*passed_over):
                for path in journals_below(place):
                    if path not in self._tails:
                        self._tails[path] = Tail(path)

    def _read(self, path: Path) -> None:
        """Add the new lines of a journal."""
        if path in self._broken:
            return
        if path in self._copied:
            self._away[path] = self._copied[path].refresh()
        try:
            for event in self._tails[path].events():
                if path not in self._totals:
                    is_fleet = isinstance(event, FleetStart)
                    self._totals[path] = FleetTotals() if is_fleet else QueryTotals()
                self._totals[path].absorb(event)
        except HeadgateError as error:
            self._broken[path] = str(error)

    def _named(self) -> Iterator[tuple[str, QueryTotals | FleetTotals]]:
        """Yield each totals with a unique name: the query's, with place and number if it is taken."""
        taken: set[str] = set()
        for path, totals in self._totals.items():
            where = path.parent.parent if path.parent.name == "headgate" else path.parent
            place = Path(self._copied[path].place).name if path in self._copied else where.name
            name = (totals.start.name if isinstance(totals, QueryTotals) else "") or place
            name = f"{name} ({place})" if name in taken else name
            number = 2
            while name in taken:
                name, number = f"{name} {number}", number + 1
            taken.add(name)
            yield name, totals


def _bounded(sample: Sample) -> Sample:
    """Return a sample with labels of at most `LABEL_MAX`: every scrape sends all labels."""
    if all(len(text) <= LABEL_MAX for text in sample.labels.values()):
        return sample
    return sample._replace(labels={k: shown(text, LABEL_MAX) for k, text in sample.labels.items()})


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each client in its own thread, and hangs up on clients above `CLIENTS_MAX`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._clients = threading.BoundedSemaphore(CLIENTS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer a client."""
        if self._clients.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away, or took too long."""


class _Handler(WSGIRequestHandler):
    """Reads a request and writes the answer, each part within `PATIENCE_S`."""

    timeout = PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape a second would fill a log."""


def _named_here(app: Callable[..., Any], host: str) -> Callable[..., Any]:
    """Return an application that refuses requests whose Host header names another host.

    A foreign page could otherwise read the metrics through its own host name (DNS rebinding).
    """
    allowed = {"127.0.0.1", "localhost", "::1", host}

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        with contextlib.suppress(ValueError):
            if urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname in allowed:
                return app(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [b"this address is for this machine only\n"]

    return checked


def _registry(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
