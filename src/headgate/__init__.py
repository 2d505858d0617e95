"""Keeps latency and throughput SLOs of PySpark streaming queries.

::

    import headgate as hg

    query = (hg.writeStream(counts)            # was: counts.writeStream
               .format("parquet").option("path", out).option("checkpointLocation", checkpoint)
               .start())
    query.scale(4)                             # while it runs

Names are loaded when they are first used, so that a Python worker never pays for the driver's part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "ArrowProcessor": "headgate.spark.worker.arrow_processor",
    "CheckpointError": "headgate.core.errors",
    "ConfigError": "headgate.core.errors",
    "Fleet": "headgate.spark.fleet.fleet",
    "HeadgateError": "headgate.core.errors",
    "OperatorPlus": "headgate.operators.operator_plus",
    "Policy": "headgate.control.policy",
    "Query": "headgate.spark.api.query",
    "Sink": "headgate.spark.sinks.own_sink",
    "Slo": "headgate.core.slo",
    "UnsupportedQuery": "headgate.core.errors",
    "Writer": "headgate.spark.api.writer",
    "adopt": "headgate.spark.plain.adopting",
    "doctor": "headgate.spark.cluster.doctor",
    "explain": "headgate.spark.api.explain",
    "export": "headgate.spark.plain.exporting",
    "inspect": "headgate.scenario.inspection",
    "merge": "headgate.spark.sinks.merge",
    "on_event": "headgate.journal.listeners",
    "session": "headgate.spark.cluster.session",
    "stateful": "headgate.spark.api.operator_plus",
    "verify": "headgate.spark.api.verify",
    "writeStream": "headgate.spark.api.writer",
}

__all__ = [
    "ArrowProcessor",
    "CheckpointError",
    "ConfigError",
    "Fleet",
    "HeadgateError",
    "OperatorPlus",
    "Policy",
    "Query",
    "Sink",
    "Slo",
    "UnsupportedQuery",
    "Writer",
    "__version__",
    "adopt",
    "doctor",
    "explain",
    "export",
    "inspect",
    "merge",
    "on_event",
    "session",
    "stateful",
    "verify",
    "writeStream",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _WHERE:
        msg = f"module 'headgate' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(__all__)


if TYPE_CHECKING:
    from headgate.control.policy import Policy
    from headgate.core.errors import CheckpointError, ConfigError, HeadgateError, UnsupportedQuery
    from headgate.core.slo import Slo
    from headgate.journal.listeners import on_event
    from headgate.operators.operator_plus import OperatorPlus
    from headgate.scenario.inspection import inspect
    from headgate.spark.api.explain import explain
    from headgate.spark.api.operator_plus import stateful
    from headgate.spark.api.query import Query
    from headgate.spark.api.verify import verify
    from headgate.spark.api.writer import Writer, writeStream
    from headgate.spark.cluster.doctor import doctor
    from headgate.spark.cluster.session import session
    from headgate.spark.fleet.fleet import Fleet
    from headgate.spark.plain.adopting import adopt
    from headgate.spark.plain.exporting import export
    from headgate.spark.sinks.merge import merge
    from headgate.spark.sinks.own_sink import Sink
    from headgate.spark.worker.arrow_processor import ArrowProcessor
