"""Serves the metrics of the driver's queries to Prometheus, at one address for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.metrics import collect
from headgate.spark.settings import options as own

if TYPE_CHECKING:
    from headgate.metrics.exporter import JournalMetrics, Serving

_lock = threading.Lock()
_served: dict[tuple[str, int], tuple[JournalMetrics, Serving]] = {}


def show_metrics(options: Mapping[str, str], journal: Path) -> Callable[[], None]:
    """Serve the metrics of a journal where an option says so; return what ends that.

    Raises
    ------
    ConfigError
        Nothing can be served there, or the extra ``metrics`` is not installed.
    """
    address = own.METRICS.of(options)
    if address is None:
        return lambda: None
    with _lock:
        if address in _served:
            _served[address][0].add(journal)
        else:
            metrics = collect([journal])
            _served[address] = metrics, metrics.serve(*address)
    return lambda: _hide(address, journal)


def _hide(address: tuple[str, int], journal: Path) -> None:
    """Serve a journal no more, and end the server with its last one; may be called twice."""
    with _lock:
        if address not in _served:
            return
        metrics, serving = _served[address]
        metrics.remove(journal)
        if not metrics.places:
            del _served[address]
            serving.close()
