"""Implements `hg.writeStream`: PySpark's ``DataFrame.writeStream`` with elastic slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pyspark.sql import DataFrame

from headgate.control import registry
from headgate.control.policy import Policy
from headgate.core.errors import ConfigError, nearest, require
from headgate.core.jit import announce_compiling
from headgate.core.slo import Slo
from headgate.migration import registry as strategies
from headgate.spark.api.query import Query
from headgate.spark.api.sparkwriter import SparkWriter
from headgate.spark.api.start import start
from headgate.spark.jvm.gateway import require_classic, require_frame
from headgate.spark.settings import arguments
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import MICRO_BATCH, SlotRange


def writeStream(df: DataFrame) -> Writer:
    """Return a writer for `df`, as ``df.writeStream`` does.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame of a classic session.

    Raises
    ------
    ConfigError
        `df` is no DataFrame.
    HeadgateError
        The session is Spark Connect.
    """
    require_frame(df, "hg.writeStream: df")
    return Writer(df)


class Writer(SparkWriter):
    """Extends PySpark's ``DataStreamWriter`` by slots.

    Methods of PySpark's writer have its meaning and defaults; every method returns the writer.
    """

    def __init__(self, df: DataFrame) -> None:
        require_classic(df.sparkSession)
        super().__init__(df)

    def __repr__(self) -> str:
        it = self.settings
        options = {key.lower(): value for key, value in it.options.items()}
        # shows only these two options, because others may be passwords
        where = it.table or options.get("path") or ""
        named = {
            "name": it.name,
            "to": f"{it.format or ('foreachBatch' if it.function else 'parquet')} {where}".strip(),
            "mode": it.mode,
            "checkpoint": options.get("checkpointlocation"),
            "slo": "; ".join(map(str, it.slos)) or None,
        }
        settings = ", ".join(f"{key} {value}" for key, value in named.items() if value is not None)
        return f"<Writer: {settings}; .start() starts it>"

    # -- PySpark's --------------------------------------------------------------------------------

    def format(self, source: str) -> Writer:
        """Set the sink's format: a file format, memory, console, noop, or any batch writer's."""
        return self._with(format=arguments.text("format", source, 'a name such as "parquet"'))

    def option(self, key: str, value: Any) -> Writer:
        """Set an option of the sink, or one of headgate's (``headgate.*``).

        Raises
        ------
        ConfigError
            An option of headgate's is unknown, or its value is out of range.
        """
        arguments.text("option name", key, "the name of an option")
        options = dict(self.settings.options)
        if value is None:  # Spark's writer ignores None; an option of headgate's is unset
            if own.is_own(key):
                options.pop(key, None)
            return self._with(options=options)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if own.is_own(key):
            key, text = own.check_option(key, value)
        return self._with(options={**options, key: text})

    def options(self, **options: Any) -> Writer:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> Writer:
        """Set the output mode: append, update or complete."""
        modes = ("append", "update", "complete")
        arguments.text("output mode", outputMode, "append, update or complete")
        if outputMode.lower() not in modes:
            msg = f'unknown output mode "{outputMode}"{nearest(outputMode, modes) or "."}'
            raise ConfigError(msg)
        return self._with(mode=outputMode.lower())

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Writer:
        """Call `func(df, id)` with the rows of each step; `id` is the same when a step is repeated."""
        arguments.check_function(func)
        return self._with(function=func, row_function=None)

    # -- headgate's -------------------------------------------------------------------------------

    def slots(self, min: int = 1, max: int | str = "auto", start: int | str = "auto") -> Writer:
        """Set the least, the most and the first number of slots.

        Parameters
        ----------
        max : int or "auto"
            auto: the number of key groups; a policy uses at most Spark's default parallelism.
        start : int or "auto"
            auto: Spark's default parallelism, at most 4.

        Raises
        ------
        ConfigError
            A value is no number of slots, or they are not min <= start <= max.
        """
        arguments.check_slots(min, max, start)
        return self._with(slots=SlotRange(min, max, start))

    def keyGroups(self, count: int) -> Writer:
        """Set the number of key groups, 1 to 32,767; an existing checkpoint fixes the number."""
        arguments.check_key_groups(count)
        return self._with(key_groups=count)

    def budget(self, budget: str | None) -> Writer:
        """Set how long a slot may serve per batch, for instance ``"800 ms"``.

        Records beyond the budget wait in the slot's durable backlog. With None a slot serves all records
        of a batch; ``"auto"``, the default, is 0.8 of the tightest latency bound, None without an SLO.
        """
        arguments.check_budget(budget)
        return self._with(budget=budget)

    def slo(self, *slos: str | Slo) -> Writer:
        """Set the query's SLOs, such as ``"mean < 1 s over 1 s"``; all of them must hold.

        Parameters
        ----------
        slos : str or Slo
            See `headgate.core.slo.parse_slo`; without an argument the query has no SLO.

        Raises
        ------
        ConfigError
            A text is no SLO.
        """
        return self._with(slos=tuple(arguments.slo(target) for target in slos))

    def policy(self, policy: str | Policy, **parameters: float) -> Writer:
        """Set the policy that decides about slots: a name such as ``"streamswitch"``, or your own policy.

        An installed package may provide further names; see docs/own-policy.md.

        The default is ``"unified"`` with an SLO, and ``"static"`` without. ``"psps"`` and
        ``"unified-pools"`` run the ``mapInArrow`` stages of a stateless query on pools of replicas.
        Every policy over slots also takes `hysteresis`, `cooldown_s` and `per_minute`.

        Raises
        ------
        ConfigError
            No policy has that name, or a parameter is unknown or out of range.
        """
        arguments.check_policy(policy, parameters)
        if isinstance(policy, str) and registry.is_replica_policy(policy):
            return self._with(
                replica_policy=registry.replica_policy(arguments.call(policy, parameters))
            )
        chosen = arguments.policy_of(policy, parameters) if isinstance(policy, str) else policy
        return self._with(policy=chosen, replica_policy=None)

    def advise(self, advise: bool = True) -> Writer:
        """Write the policy's decisions and their reasons to the journal, without changes of slots."""
        require(isinstance(advise, bool), "advise", advise, "True or False")
        return self._with(advise=advise)

    def migration(self, strategy: str) -> Writer:
        """Set the strategy of migrations: ``"subscale"``, ``"fluid(...)"`` and others.

        By default state that stays on its host only changes its owner (``"shared"``), and state that
        changes host moves by ``"subscale"``; see `headgate.migration.registry`.

        Raises
        ------
        ConfigError
            No strategy has that name, or a parameter is unknown or out of range.
        """
        arguments.text("migration", strategy, 'a strategy such as "subscale" or "fluid"')
        return self._with(migration=str(strategies.strategy(strategy)))

    def fallback(self, to: Literal["error", "micro-batch", "spark"]) -> Writer:
        """Set the substitute for a query that cannot run as set: "error", the default, refuses it.

        "micro-batch": if it cannot run in real time; "spark": if it cannot run elastically.
        """
        if to not in ("error", MICRO_BATCH, "spark"):
            msg = f'unknown fallback "{to}"; use "error", "{MICRO_BATCH}" or "spark".'
            raise ConfigError(msg)
        return self._with(fallback=to)

    def release(self, when: Literal["committed", "early"]) -> Writer:
        """Set when outputs go out in real time: "committed", once, or "early", at least once."""
        if when not in (own.COMMITTED, own.EARLY):
            msg = f'unknown release "{when}"; use "{own.COMMITTED}" or "{own.EARLY}".'
            raise ConfigError(msg)
        return self.option(own.RELEASE.key, when)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Query:
        """Start the query with a table as sink, which is created if missing; parameters as PySpark's.

        Raises
        ------
        UnsupportedQuery, ConfigError, CheckpointError
            As `start` does.
        """
        name = arguments.text("toTable: tableName", tableName, "the name of a table")
        self._with(table=name)
        return self.start(None, format, outputMode, partitionBy, queryName, **options)

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Query:
        """Start the query; parameters as of PySpark's ``start``.

        Raises
        ------
        UnsupportedQuery
            A part of the query cannot run elastically.
        ConfigError
            A setting is out of range.
        CheckpointError
            The checkpoint belongs to another query, is locked, or is damaged.
        """
        self._take_start_arguments(path, format, outputMode, partitionBy, queryName, options)
        with announce_compiling():
            return start(self.df, self.settings)

    def _take_start_arguments(
        self,
        path: str | None,
        source: str | None,
        mode: str | None,
        partition_by: str | list[str] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        self.options(**options)
        if mode is not None:
            self.outputMode(mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if source is not None:
            self.format(source)
        if name is not None:
            self.queryName(name)
        if path is not None:
            if any(key.lower() == "path" for key in self.settings.options):
                msg = f'start("{path}") and option "path" both say where to; leave one out, as in Spark.'
                raise ConfigError(msg)
            self.option("path", path)
