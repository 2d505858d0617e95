"""Defines a workload: a query that ``headgate run`` starts, with everything that a run needs.

Other distributions add workloads by the entry point group ``headgate.workloads``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class ServiceBeside(Protocol):
    """Runs a program beside a query for the length of a run: a Kafka broker with its load."""

    sink_format: str
    """Format of the query's sink, where the scenario names none."""
    sink_options: Mapping[str, str]
    """Options of that sink, once the service has started."""
    options: Mapping[str, Any]
    """Arguments of the query that only the started service knows, such as its address."""

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        """Start the service; its data lie in `directory`."""

    @staticmethod
    def conf(given: Mapping[str, str]) -> dict[str, str]:
        """Return further settings that the Spark session needs, beside `given`."""

    def begin(self) -> None:
        """Begin the load; called once the query runs."""

    def output(self, spark: Any, schema: Any) -> Any:
        """Return the query's output as a DataFrame."""

    def close(self) -> None:
        """End the service."""


@dataclass(frozen=True)
class Workload:
    """Holds a query, or a user's function in the same form, with everything that a run needs."""

    build: Callable[..., Any]
    """``build(spark, **options)`` returns the query, a streaming DataFrame."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Default arguments of `build`."""
    output_mode: str = "append"
    """Spark's output mode. File sinks accept append only."""
    arrival: str | None = None
    """Column with the time at which a record became available: the arrival for latency; None where the
    engine finds the column, or there is none."""
    reference: Callable[..., Any] | None = None
    """``reference(spark, **options)`` returns the rows that the query must put out, computed in another
    way; None where these rows are Spark's own batch answer."""
    stateful: bool = True
    """True where the query has an operator to scale."""
    check: Callable[[Mapping[str, str]], object] | None = None
    """Refuses options that `build` only passes on to its source, before Spark starts."""
    beside: type[ServiceBeside] | None = None
    """Service that must run beside the query and takes its results; None for no service."""
    function: Callable[..., Any] | None = None
    """The user's function that `build` wraps; None for an installed workload."""
