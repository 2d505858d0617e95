"""`hg.writeStream`: PySpark's ``DataFrame.writeStream`` with elastic slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

from pyspark.sql import DataFrame

from headgate.control import registry
from headgate.control.policy import Policy
from headgate.control.replicas import ReplicaPolicy
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, UnsupportedQuery, nearest
from headgate.core.slo import Slo
from headgate.loop import steering
from headgate.operators.spec import OutputMode
from headgate.spark.cluster.allocation import follow_slots
from headgate.spark.cluster.location import check_seen
from headgate.spark.job.job import JobConfig
from headgate.spark.job.ports import Observer
from headgate.spark.jvm.gateway import require_classic
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.jvm.logfiles import raw_local_files
from headgate.spark.move.carrier import strategy_of
from headgate.spark.query import Query
from headgate.spark.read.logical import read
from headgate.spark.read.plan import Query as Plan
from headgate.spark.replicas import start as replicas
from headgate.spark.replicas.reading import read_pipeline
from headgate.spark.settings import given
from headgate.spark.settings import options as own
from headgate.spark.sparkwriter import SparkWriter
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.control import DELTA_S, ControlConfig, Controller
from headgate.spark.step.begin import begin
from headgate.spark.step.driver import BatchDriver
from headgate.spark.step.record import Recorder
from headgate.spark.step.warmup import warm_workers
from headgate.state.arena import arena_root, open_run, sweep
from headgate.state.checkpoint import Checkpoint
from headgate.state.control import ControlFiles


def writeStream(df: DataFrame) -> Writer:
    """Return a writer for `df`, as ``df.writeStream`` does.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame of a classic session.

    Raises
    ------
    HeadgateError
        The session is Spark Connect.
    """
    return Writer(df)


class Writer(SparkWriter):
    """PySpark's ``DataStreamWriter`` with slots.

    Methods of PySpark's writer have its meaning and defaults; every method returns the writer.
    """

    def __init__(self, df: DataFrame) -> None:
        require_classic(df.sparkSession)
        super().__init__(df)
        self._slots: tuple[int, int | str, int | str] = (1, "auto", "auto")
        self._key_groups = 128
        self._budget: str | None = "auto"
        self._slos: tuple[Slo, ...] = ()
        self._policy: Policy | None = None
        self._replica_policy: ReplicaPolicy | None = None
        self._advise = False
        self._fallback = "error"
        self._migration = ""
        self._faults: list[dict[str, Any]] = []
        # What is told about its batches: the query's own loop, and around it what a fleet puts there.
        self._watch: Callable[[Observer | None, BatchDriver], Observer | None] = lambda own, _: own

    # -- PySpark's --------------------------------------------------------------------------------

    def format(self, source: str) -> Writer:
        """Set the sink's format: a file format, memory, console, noop, or any batch writer's."""
        self._format = given.text("format", source, 'a name such as "parquet"')
        return self

    def option(self, key: str, value: Any) -> Writer:
        """Set an option of the sink, or one of headgate's (``headgate.*``).

        Raises
        ------
        ConfigError
            An option of headgate's is unknown, or may not be that.
        """
        given.text("option name", key, "the name of an option")
        if value is None:
            self._options.pop(key, None)
            return self
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if own.is_own(key):
            key, text = own.taken(key, value)
        self._options[key] = text
        return self

    def options(self, **options: Any) -> Writer:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> Writer:
        """Set append, update or complete."""
        modes = ("append", "update", "complete")
        given.text("output mode", outputMode, "append, update or complete")
        if outputMode.lower() not in modes:
            msg = f'unknown output mode "{outputMode}"{nearest(outputMode, modes)}.'
            raise ConfigError(msg)
        self._mode = outputMode.lower()
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Writer:
        """Give each step's rows to `func(df, id)`; `id` is the same when a step comes again."""
        given.check_function(func)
        self._function, self._row_function = func, None
        return self

    # -- headgate's -------------------------------------------------------------------------------

    def slots(self, min: int = 1, max: int | str = "auto", start: int | str = "auto") -> Writer:
        """Set the least, the most and the first number of slots.

        Parameters
        ----------
        min : int
        max : int or "auto"
            auto: the number of key groups; a policy stays within the cores granted.
        start : int or "auto"
            auto: the cores granted, at most 4.

        Raises
        ------
        ConfigError
            One is no number of slots, or they are not min <= start <= max.
        """
        given.check_slots(min, max, start)
        self._slots = (min, max, start)
        return self

    def keyGroups(self, count: int) -> Writer:
        """Set the number of key groups, 1 to 32,767; fixed once the checkpoint exists."""
        given.check_key_groups(count)
        self._key_groups = count
        return self

    def budget(self, budget: str | None) -> Writer:
        """Set how long a slot may serve per batch, for instance ``"800 ms"``.

        What exceeds it waits in the slot's durable backlog. None serves everything in its batch;
        ``"auto"``, the default, is 0.8 of the tightest latency bound, and None without an SLO.
        """
        given.check_budget(budget)
        self._budget = budget
        return self

    def slo(self, *slos: str | Slo) -> Writer:
        """Set what the query must achieve: ``"mean < 1 s over 1 s"``; all given must hold.

        Parameters
        ----------
        slos : str or Slo
            See `headgate.core.slo.parse_slo`; none takes them back.

        Raises
        ------
        ConfigError
            A text is no SLO.
        """
        self._slos = tuple(given.slo(one) for one in slos)
        return self

    def policy(self, policy: str | Policy, **parameters: float) -> Writer:
        """Set who decides about slots: a name as ``"streamswitch"``, or a policy of your own.

        The default is ``"streamswitch"`` with an SLO, and ``"static"`` without. ``"psps"``,
        ``"unified-pools"`` and ``"dabs"`` run the ``mapInArrow`` stages of a stateless query on pools
        of replicas. Every policy over slots also takes `hysteresis`, `cooldown_s` and `per_minute`.

        Raises
        ------
        ConfigError
            No policy has that name, or a parameter is unknown or out of range.
        """
        given.check_policy(policy, parameters)
        if isinstance(policy, str) and registry.is_replica_policy(policy):
            self._replica_policy = registry.replica_policy(given.call(policy, parameters))
            return self
        self._replica_policy = None
        self._policy = given.policy_of(policy, parameters) if isinstance(policy, str) else policy
        return self

    def advise(self, advise: bool = True) -> Writer:
        """Let the policy decide and write down why, and change nothing."""
        given.require(isinstance(advise, bool), "advise", advise, "True or False")
        self._advise = advise
        return self

    def migration(self, strategy: str) -> Writer:
        """Set how a change of assignment is carried out: ``"subscale"``, ``"fluid(...)"`` and others.

        By default state that stays on its host is only handed over (``"shared"``), and what changes
        host goes by ``"subscale"``; see `headgate.migration.registry`.

        Raises
        ------
        ConfigError
            No strategy has that name, a parameter is unknown or out of range, or it bounds how many
            records a slot defers, which nothing does on Spark.
        """
        given.text("migration", strategy, 'a strategy such as "subscale" or "fluid"')
        self._migration = str(strategy_of(strategy))
        return self

    def fallback(self, to: Literal["error", "spark"]) -> Writer:
        """Say what happens to a query that cannot run elastically: refuse it, or plain Spark."""
        if to not in ("error", "spark"):
            msg = f'unknown fallback "{to}"; use "error" or "spark".'
            raise ConfigError(msg)
        self._fallback = to
        return self

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Query:
        """Start the query into a table, which is made if it is not there; parameters as of PySpark's.

        Raises
        ------
        UnsupportedQuery, ConfigError, CheckpointError
            As `start` does.
        """
        self._table = tableName
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
            The checkpoint belongs to something else, is held, or is damaged.
        """
        self._take_start_arguments(path, format, outputMode, partitionBy, queryName, options)
        if self._replica_policy is not None:
            # not a Query: pools have neither assignments nor an SLO to steer by
            pooled: Query = self._start_pools(self._replica_policy)
            return pooled
        try:
            plan = read(self._df, self._mode, own.ARRIVAL.of(self._options))
        except UnsupportedQuery:
            if self._fallback == "spark":
                plain: Query = self._start_plain()
                return plain
            raise
        return self._start(plan)

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
            if any(key.lower() == "path" for key in self._options):
                msg = f'start("{path}") and option "path" both say where to; leave one out, as in Spark.'
                raise ConfigError(msg)
            self.option("path", path)

    def _start_pools(self, policy: ReplicaPolicy) -> Any:
        """Run the Python stages of a stateless query on pools of replicas."""
        if self._advise:
            msg = f"{policy.name} cannot only advise; leave out .advise(), or the policy."
            raise ConfigError(msg)
        if self._mode == "complete":
            msg = (
                f'{policy.name} runs stateless queries, which have no mode "complete"; use append.'
            )
            raise ConfigError(msg)
        pipeline = read_pipeline(self._df, policy.name, own.ARRIVAL.of(self._options))
        plan = Plan([], pipeline.plan, self._df.schema, OutputMode.APPEND)
        config = replicas.pool_config(
            self._df.sparkSession, self._slots, self._options, self._budget_s()
        )
        with ExitStack() as undo:
            where = self._place()
            undo.callback(where.leave, failed=False)
            pooled = replicas.start(
                self._df,
                pipeline,
                config,
                policy,
                self._sink(plan, where),
                place=where,
                name=self._name,
                trigger=self._trigger,
            )
            undo.pop_all()
        return pooled

    def _start(self, plan: Plan) -> Query:
        spark = self._df.sparkSession
        config = self._config()
        with ExitStack() as undo:  # an interrupt, too, leaves nothing behind
            where = self._place()
            undo.callback(where.leave, failed=False)
            sink = self._sink(plan, where)
            checkpoint = Checkpoint(where.path)
            job = checkpoint.open(_identity(plan, config))
            check_seen(spark, checkpoint.root / "identity.json")
            lock = CheckpointLock(spark, checkpoint.root)
            undo.callback(lock.release)
            root = arena_root()
            sweep(root)
            run = open_run(root)
            undo.callback(run.close)
            sink.begin()
            recorder = Recorder(checkpoint.root / "journal.jsonl")
            driver = BatchDriver(spark, plan, config, checkpoint, job, run, sink, recorder)
            undo.callback(driver.close)
            frame = driver.intake.stream
            controller = self._controller(plan, driver, recorder)
            driver.observer = self._watch(controller, driver)
            commands = Commands(
                ControlFiles(checkpoint.root),
                driver.changes,
                controller,
                recorder.write,
                recorder.path,
                driver.set_budget if self._budget == "auto" else lambda _: None,
            )
            driver.commands = commands
            driver.rehearse()
            warm_workers(spark, [op.spec for op in plan.operators])
            leave_executors = follow_slots(
                spark, driver, recorder.write, own.EXECUTORS.of(self._options)
            )
            undo.callback(leave_executors)
            recorder.start(driver, own.WORKLOAD.of(self._options), self._parameters(config))
            driver.redeliver_drained()
            if controller is not None:
                controller.start()
                undo.callback(controller.stop)
            commands.restore()
            writer = self._inner(frame, where).foreachBatch(driver.process)
            undo.callback(driver.give_up)  # in case Spark has started the query all the same
            with raw_local_files(spark):
                inner = begin(writer.start, frame, lambda: driver.batches_begun > 0)
            if "availableNow" not in self._trigger:
                driver.intake.start_ticking()
            undo.pop_all()

        def release() -> None:
            with ExitStack() as held:  # what one cannot give back does not keep the others
                held.callback(lambda: where.leave(failed=inner.exception() is not None))
                for give_back in (run.close, run.end, leave_executors, lock.release, driver.close):
                    held.callback(give_back)

        finite = "availableNow" in self._trigger
        return Query(inner, driver, controller, commands, finite=finite, release=release)

    def _controller(self, plan: Plan, driver: BatchDriver, recorder: Recorder) -> Controller | None:
        """Return what steers the query; None without an SLO or without operators."""
        if not self._slos or not plan.operators:
            if self._policy is not None and self._policy.name != "static":
                msg = (
                    f"policy {self._policy.name} has nothing to steer by; add .slo(...) to a query "
                    "with a stateful operator."
                )
                raise ConfigError(msg)
            return None
        job = driver.config
        cores = self._df.sparkSession.sparkContext.defaultParallelism
        policy = self._policy or given.policy_of("streamswitch", {})
        config = ControlConfig(self._slos, policy, advise=self._advise, **self._limits(job))
        parents = {op.id: (op.upstream.id,) for op in plan.operators if op.upstream is not None}
        return Controller(
            config,
            job,
            driver.states,
            driver.changes,
            recorder.write,
            budget_s=lambda: driver.config.budget_s,
            cores=cores,
            parents=parents,
        )

    def _budget_s(self) -> float | None:
        if self._budget is None or self._trigger.keys() & {"availableNow", "once"}:
            return None
        if self._budget == "auto":
            return steering.budget_s(self._slos)
        return parse_duration_s(self._budget)

    def _config(self) -> JobConfig:
        least, most, start = self._slots
        most_slots = self._key_groups if most == "auto" else int(most)
        if most_slots > self._key_groups:
            msg = f"slots max={most_slots} exceeds the {self._key_groups} key groups; use at most that."
            raise ConfigError(msg)
        cores = self._df.sparkSession.sparkContext.defaultParallelism
        first = min(4, cores, most_slots) if start == "auto" else int(start)
        first = max(first, least) if start == "auto" else first
        if not 1 <= least <= first <= most_slots:
            msg = f"slots min={least}, start={first}, max={most_slots} are not 1 <= min <= start <= max."
            raise ConfigError(msg)
        options = self._options
        rate = own.SLOT_RATE.of(options)
        return JobConfig(
            name=self._name or "headgate",
            key_groups=self._key_groups,
            slots=first,
            slots_max=most_slots,
            budget_s=self._budget_s(),
            mode=self._mode,
            snapshot_every=own.SNAPSHOT_EVERY.of(options),
            attempts=own.ATTEMPTS.of(options),
            # what a slot at a fixed rate serves is counted in records, so rows must be records
            preaggregate="off" if rate else own.PREAGGREGATE.of(options),
            keep_late=own.KEEP_LATE.of(options),
            backlog_bytes_max=own.BACKLOG_BYTES_MAX.of(options),
            backlog_age_max_s=own.BACKLOG_AGE_MAX.of(options),
            slot_rate=rate,
            delta_ms=DELTA_S * 1e3 if self._slos else 0.0,
            processor_limit_s=own.TIME_LIMIT.of(options) or 0.0,
            migration=self._migration,
            faults=self._faults,
        )

    def _limits(self, job: JobConfig) -> dict[str, Any]:
        """Return what a policy is held to, as fields of `ControlConfig`."""
        cores = self._df.sparkSession.sparkContext.defaultParallelism
        least, most, _ = self._slots
        at_most = job.slots_max
        if most == "auto" and job.slot_rate is None:
            at_most = max(job.slots, min(cores, job.slots_max))
        floor_s = own.FLOOR.of(self._options)
        return {"slots_min": least, "slots_max": at_most, "floor_s": floor_s}

    def _parameters(self, config: JobConfig) -> dict[str, Any]:
        found = dataclasses.asdict(config) | (self._limits(config) if self._slos else {})
        policy = self._policy.name if self._policy is not None else "streamswitch"
        control = {"slo": [str(slo) for slo in self._slos], "advise": self._advise}
        return (
            found
            | control
            | {
                "policy": policy if self._slos else "static",
                "cores": self._df.sparkSession.sparkContext.defaultParallelism,
                "trigger": self._trigger,
                "format": self._format,
            }
        )


def _identity(plan: Plan, config: JobConfig) -> dict[str, Any]:
    """Return what of a query its checkpoint depends on."""
    return {
        "key_groups": config.key_groups,
        "mode": config.mode,
        "operators": {
            op.id: {**op.spec.to_json(), "keys": op.key_names, "kinds": op.spec.to_json()["keys"]}
            for op in plan.operators
        },
    }
