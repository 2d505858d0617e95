"""Turns journals into metrics: counters and gauges for Prometheus, alert rules, a Grafana board.

Belongs here: sums of the lines of a journal, and the names, labels and values of metrics. Does not
belong here: views for people, which are `headgate.report`, and anything that needs the engine. Imports
`headgate.journal` and `headgate.core` only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headgate.core.errors import ConfigError

if TYPE_CHECKING:
    from headgate.journal.reader import CopiedJournal
    from headgate.metrics.exporter import JournalMetrics


def collect(places: Iterable[str | os.PathLike[str] | CopiedJournal]) -> JournalMetrics:
    """Return the metrics of the journals at some places; raises as `JournalMetrics`.

    Raises `ConfigError`: the extra ``metrics`` is not installed.
    """
    try:
        from headgate.metrics.exporter import JournalMetrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = 'metrics need prometheus-client: in a checkout of headgate, pip install ".[metrics]".'
        raise ConfigError(msg) from error
    return JournalMetrics(places)
