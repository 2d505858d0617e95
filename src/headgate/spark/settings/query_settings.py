"""Holds the settings of one query as a value, for the start of a query, a fleet and benches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from headgate.control.policy import Policy
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.core.duration import parse_duration_s
from headgate.core.slo import Slo
from headgate.loop import steering
from headgate.spark.settings import options as own

_ENDS = {"availableNow", "once"}
"""Triggers that end the query when it has read all data that was there at its start."""


class SlotRange(NamedTuple):
    """Holds the numbers of slots that a query may have; see `Writer.slots`."""

    min: int = 1
    max: int | str = "auto"
    start: int | str = "auto"


MICRO_BATCH = "micro-batch"
"""A fallback: micro-batches for a query that cannot run in real time."""


@dataclass(frozen=True)
class QuerySettings:
    """Holds all settings that a user made with `hg.writeStream`; each was checked when it was set.

    Each method of a writer makes a new object, and no object ever changes. Values that depend on the
    session, such as "auto", are resolved when the query starts.
    """

    format: str | None = None
    mode: str = "append"
    name: str | None = None
    table: str | None = None
    """`format`, `mode`, `name`, `table`: format and output mode of the sink, the query's name, and
    the table it writes to."""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """As PySpark's ``trigger`` takes it; empty for Spark's default."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the sink, and headgate's own; see `headgate.spark.settings.options`."""
    function: Callable[[DataFrame, int], None] | None = None
    row_function: Any = None
    """`function`, `row_function`: the user's functions of ``foreachBatch`` and ``foreach``."""
    slots: SlotRange = field(default_factory=SlotRange)
    key_groups: int = 128
    budget: str | None = "auto"
    """A duration, "auto", or None for no budget."""
    slos: tuple[Slo, ...] = ()
    policy: Policy | None = None
    """None for the default policy."""
    replica_policy: ReplicaPolicy | None = None
    """Runs the query's stages on pools of replicas."""
    advise: bool = False
    fallback: str = "error"
    """*error*, *micro-batch* (instead of real time) or *spark*."""
    migration: str = ""
    """Name of a strategy; empty for the default of each change."""
    faults: tuple[Mapping[str, Any], ...] = ()
    """Faults that `headgate_lab.testing.faults` injects; empty outside tests and benches."""

    @property
    def is_real_time(self) -> bool:
        """Return whether the query has epochs instead of batches."""
        return "realTime" in self.trigger

    @property
    def sink_options(self) -> dict[str, str]:
        """The options without headgate's own."""
        return {key: value for key, value in self.options.items() if not own.is_own(key)}

    @property
    def budget_s(self) -> float | None:
        """Return the time that a slot may serve per batch, in seconds; None for no limit."""
        if self.budget is None or self.is_real_time or self.trigger.keys() & _ENDS:
            return None
        if self.budget == "auto":
            return steering.budget_s(self.slos)
        return parse_duration_s(self.budget)
