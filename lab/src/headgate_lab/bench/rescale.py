"""Compares strategies of a change of slots under load, by the time of batches and the latency of records.

The query computes sums per key, whose state has a given size and is loaded before the measurement, or is
one of DRRS's three. The number of slots grows while records arrive: on a cluster whose hosts share no
memory, and on one host. Each strategy has its own query and checkpoint, and changes the slots there and
back as often as is asked. ``stop-restart`` stops the query and starts it again. The baseline is Spark's
own change of the number of partitions, with as much state.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import Command, CommandFiles
from headgate.core.size import parse_bytes
from headgate.migration.registry import strategy
from headgate.spark.cluster.session import session
from headgate_demo.spark import sources
from headgate_lab.bench import flink_rescale, repartition, wide
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.bench.rescale_cost import Markers, RescaleRun, change_of, longest_s
from headgate_lab.bench.rescale_queries import LOADS_S, PAPERS, STARTS_S, sums
from headgate_lab.testing.locations import located

ONLY = {
    "all": "subscale(share=false)",
    "decoupling": "subscale(scheduling=false, division=false, share=false)",
    "scheduling": "subscale(decoupling=false, division=false, share=false)",
    "subscale": "subscale(decoupling=false, scheduling=false, share=false)",
    "none": "subscale(decoupling=false, scheduling=false, division=false, share=false)",
}
"""DRRS's mechanisms: all, each alone, and none (DRRS V-C)."""

LIVE = ("all-at-once", "fluid", "on-demand")
"""Rivals of ``subscale`` that keep the query running across hosts."""

SHORTER = {"peak_ms": 0.8, "mean_ms": 0.9, "operation_s": 0.75}
"""Targets of ``subscale``: relative reduction of each figure against the best of `LIVE`; design, figures
to reach."""

IN_HOST_ADDED_MS = 40.0
"""Target: a change within a host adds less time than this to a batch; design, figures to reach."""

SPARK_TIMES = 100.0
"""Target: Spark's own change takes at least this many times as long; design, figures to reach."""

_WARM_KEYS = 5_000
_SETTLED_BATCHES = 5
_SETTLED_FACTOR = 4.0
"""A stream counts as settled while the largest latency is below this many batch times. In a stream that
keeps up a record waits for one batch and for its own, at most twice the time of a batch."""

_LOADED = 0.99
"""Share of the keys from which the state counts as loaded: a block may be missed by its time."""

_STABLE_TIMES = 3.0
"""A run ends when latency has kept within 110 % for `seconds`, or after this multiple of `seconds`."""

_WAIT_S = 240.0
_POLL_S = 0.1


@dataclass(frozen=True)
class RescaleParameters:
    """Holds the parameters of `run`."""

    query: str = "sums"
    """sums, or one of DRRS's queries: q7, q8, twitch. The state of these is that of the records before
    the change."""

    state: str = "100MB"
    """Size of the state of sums in headgate's layout, with its unit."""

    only: str = ""
    """DRRS's mechanisms to compare instead of strategies, any of decoupling, scheduling, subscale, all
    and none, separated by commas."""

    strategies: str = "subscale; all-at-once; fluid; on-demand; stop-restart; shared"
    """Strategies to compare, separated by semicolons; ``shared`` runs on one host only."""

    hosts: int = 2
    """Hosts of the cluster, which share no memory; >= 2."""

    cores: int = 2
    """Cores of each host, and of the one host; >= 1."""

    slots_from: int = 8
    """Slots before the change; >= 1."""

    slots_to: int = 12
    """Slots after it; >= 1."""

    partitioning: str = "uniform"
    """uniform or minimal: uniform moves 111 of 128 key groups for 8 to 12 slots, minimal 40."""

    key_groups: int = 128
    """Key groups; >= the slots."""

    rate: int = 10_000
    """Records per second; > 0."""

    seconds: float = 10.0
    """Time of the measurement before the change, and time for which latency must keep within 110 % of
    that after the change; > 0. The paper has 100 (DRRS V-B)."""

    in_host: bool = True
    """Whether changes within one host are also measured; not in real time."""

    spark: bool = True
    """Whether Spark's own stop, repartition and restart is also measured; with sums only."""

    flink: bool = True
    """Whether Flink's own stop with a savepoint and restart is also measured, where Flink is installed;
    with sums only, and not with `only`."""

    repeats: int = 1
    """Changes of every strategy; the result has the median of each figure, and all of some; >= 1."""

    real_time: bool = False
    """Whether queries run in real time, once their state is loaded in micro-batches. Changes within one
    host are then not measured."""

    location: str | None = None
    """Location of headgate's checkpoints, for `located`; None for a directory."""

    def __post_init__(self) -> None:
        parse_bytes(self.state)
        known = ", ".join(("sums", *PAPERS))
        require(
            self.query in known.split(", "), f"query={self.query} of rescale is none of {known}."
        )
        for name in re.split(r"[,|]", self.only) if self.only else ():
            known = ", ".join(ONLY)
            require(name.strip() in ONLY, f"only={name} of rescale is none of {known}.")
        for text in self.strategies.split(";"):
            strategy(text)
        require(self.hosts > 1, f"hosts={self.hosts} of rescale is out of range; use 2 or more.")
        require(self.cores > 0, f"cores={self.cores} of rescale is out of range; use 1 or more.")
        most = max(self.slots_from, self.slots_to)
        fits = min(self.slots_from, self.slots_to) > 0 and most <= self.key_groups
        require(fits, f"slots of rescale are out of range; use 1 to key_groups={self.key_groups}.")
        require(self.rate > 0, f"rate={self.rate} of rescale is out of range; use 1 or more.")
        require(self.seconds > 0, f"seconds={self.seconds} of rescale must be above 0.")
        require(
            self.repeats > 0, f"repeats={self.repeats} of rescale is out of range; use 1 or more."
        )

    def rows(self) -> dict[str, str]:
        """Return the strategies to compare, by name."""
        if self.only:
            return {name.strip(): ONLY[name.strip()] for name in re.split(r"[,|]", self.only)}
        return {text.strip(): text.strip() for text in self.strategies.split(";")}


def run(**given: Any) -> dict[str, Any]:
    """Measure every strategy.

    Parameters
    ----------
    **given
        Fields of `RescaleParameters`.

    Returns
    -------
    dict
        ``across_hosts`` and ``in_host``: by strategy, the fields of `rescale_cost.Change`, and
        ``state_bytes`` as measured; ``spark``: the result of `repartition.measure`; ``flink``: that
        of `flink_rescale.measure`; ``judged``; ``parameters``; ``machine``.
    """
    chosen = parameters(RescaleParameters, given)
    with located(chosen.location) as location:
        found = _measured(replace(chosen, location=location))
    if chosen.spark and not chosen.only and chosen.query == "sums":
        progress("Spark: stop, repartition, restart")
        found["spark"] = repartition.measure(
            parse_bytes(chosen.state), chosen.slots_from, chosen.slots_to
        )
    if chosen.flink and not chosen.only and chosen.query == "sums":
        size, slots = parse_bytes(chosen.state), (chosen.slots_from, chosen.slots_to)
        found["flink"] = flink_rescale.measure(size, *slots, chosen.repeats, chosen.rate)
    found["judged"] = judged(found)
    return found | {"parameters": asdict(chosen), "machine": machine()}


def _measured(chosen: RescaleParameters) -> dict[str, Any]:
    """Return the cost of each strategy, across hosts and in one host."""
    found: dict[str, Any] = {"in_host": {}}
    in_host = chosen.in_host and not chosen.real_time
    for place in ("across_hosts", *(("in_host",) if in_host else ())):
        with tempfile.TemporaryDirectory(prefix="headgate-rescale-", dir=_memory()) as work:
            request = {"directory": work, "place": place, "parameters": asdict(chosen)}
            name = "headgate_lab.bench.rescale"
            command = [sys.executable, "-m", name, "--child", json.dumps(request)]
            limit_s = (
                120
                + ((2 + _STABLE_TIMES) * chosen.seconds + 2 * _WAIT_S)
                * len(chosen.rows())
                * chosen.repeats
            )
            found[place] = child(command, spark_env(), limit_s)
    return found


def judged(found: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the measurements with the targets.

    Parameters
    ----------
    found : mapping
        The result of `run`; parts may be missing.

    Returns
    -------
    dict
        ``in_host_added_ms`` of ``shared``; ``spark_times``: time of Spark's own change, as a multiple of
        that (of 1 ms, if less was added); ``subscale_less``: relative reduction against the best of
        `LIVE`, per figure. Each with ``aim`` and ``met``.
    """
    made: dict[str, Any] = {}
    shared = found["in_host"].get("shared")
    if shared:
        added_ms = shared["added_ms"]
        met = added_ms < IN_HOST_ADDED_MS
        made["in_host_added_ms"] = {"value": added_ms, "aim": IN_HOST_ADDED_MS, "met": met}
        if "spark" in found:
            times = round(found["spark"]["total_ms"] / max(1.0, added_ms), 1)
            met = times >= SPARK_TIMES
            made["spark_times"] = {"value": times, "aim": SPARK_TIMES, "met": met}
    across = found["across_hosts"]
    rivals = [across[name] for name in LIVE if name in across]
    if "subscale" in across and rivals:
        made["subscale_less"] = {
            figure: _less(across["subscale"][figure], [rival[figure] for rival in rivals], aim)
            for figure, aim in SHORTER.items()
        }
    return made


def _less(ours: float | None, theirs: Sequence[float | None], aim: float) -> dict[str, Any]:
    known = [value for value in theirs if value]
    part = round(1 - ours / min(known), 3) if known and ours is not None else None
    return {"value": part, "aim": aim, "met": part is not None and part >= aim}


def _memory() -> str | None:
    """Return a directory in memory for the hosts' arenas, if the machine has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# --- in the child --------------------------------------------------------------------------------


@dataclass
class _Bench:
    """Runs strategies in one session."""

    spark: SparkSession
    chosen: RescaleParameters
    directory: Path
    keys: int
    """Keys of sums; 0 for another query."""
    loads_until_s: float = 0.0
    """End of the records that load the state of sums, s since 1970."""

    def start(
        self, text: str, checkpoint: str, slots: int, markers: Markers, *, real_time: bool
    ) -> Any:
        hg = importlib.import_module("headgate")  # late: the package's front imports this engine
        chosen, mode = self.chosen, "append" if self.chosen.query in ("q8", "twitch") else "update"
        writer = (
            hg.writeStream(self._frame())
            .slots(start=slots)
            .keyGroups(chosen.key_groups)
            .outputMode(mode)
            .foreachBatch(markers.keep)
            .option("checkpointLocation", checkpoint)
            .option("headgate.arrival", "scheduled")
            .option("headgate.preaggregate", "off")
            # the number of executors is fixed: slots share cores
            .option("headgate.executors", "keep")
        )
        if real_time:
            writer = writer.trigger(realTime="5 minutes")
        return writer.migration(text).start()

    def _frame(self) -> DataFrame:
        if self.chosen.query in PAPERS:
            return PAPERS[self.chosen.query](self.spark, self.chosen.rate)
        return sums(self.spark, self.chosen.rate, self.keys, self.loads_until_s)

    def warm_up(self) -> None:
        """Start workers and compile kernels, with a query of little state that changes slots once."""
        chosen = replace(self.chosen, seconds=2.0, repeats=1)
        bench = _Bench(self.spark, chosen, self.directory, min(self.keys, _WARM_KEYS))
        bench.changes("all-at-once", "warm")

    def changes(self, text: str, name: str) -> list[RescaleRun]:
        """Change slots there and back with one strategy; return the measurements of each way there."""
        chosen = self.chosen
        checkpoint, markers = f"{chosen.location or self.directory}/{name}", Markers()
        query = self._loaded(text, checkpoint, markers)
        journal = _Journal(query.journal)
        runs: list[RescaleRun] = []
        for index in range(chosen.repeats):
            asked_ms = time.time() * 1e3
            if index:
                query = self._ask(query, text, checkpoint, chosen.slots_from, markers)
                journal.wait(query, _assigned_since(asked_ms))
            # first wait until the records that waited meanwhile have been served
            journal.wait_until(query, _settled_since(asked_ms))
            from_ms = time.time() * 1e3
            time.sleep(chosen.seconds)
            asked_ms = time.time() * 1e3
            query = self._ask(query, text, checkpoint, chosen.slots_to, markers)
            journal.wait(query, _assigned_since(asked_ms))
            runs.append(self._until_stable(journal, markers, from_ms, asked_ms))
        query.stop()
        return runs

    def _loaded(self, text: str, checkpoint: str, markers: Markers) -> Any:
        """Return the query, once its state is loaded."""
        chosen = self.chosen
        self.loads_until_s = time.time() + LOADS_S
        by_records = chosen.query in PAPERS
        query = self.start(
            text, checkpoint, chosen.slots_from, markers, real_time=chosen.real_time and by_records
        )
        least = self.keys * _LOADED
        journal = _Journal(query.journal)
        journal.wait(query, lambda e: e["event"] == "batch" and e["state_rows"] >= least)
        time.sleep(max(0.0, self.loads_until_s + STARTS_S - time.time()))
        if chosen.real_time and not by_records:
            # micro-batches load several times faster than real time
            journal.wait_until(query, _settled_since(0.0))
            query.stop()
            query = self.start(text, checkpoint, chosen.slots_from, markers, real_time=True)
        return query

    def _ask(self, query: Any, text: str, checkpoint: str, slots: int, markers: Markers) -> Any:
        """Request a change of slots; return the query that makes it."""
        partitioning, real_time = self.chosen.partitioning, self.chosen.real_time
        if text != "stop-restart":
            query.scale(slots, partitioning=partitioning, by="bench")
            return query
        query.stop()
        arguments = {"slots": slots, "partitioning": partitioning}
        CommandFiles(Checkpoint(checkpoint).files).ask(
            Command("scale", "bench", arguments=arguments)
        )
        return self.start(text, checkpoint, self.chosen.slots_from, markers, real_time=real_time)

    def _until_stable(
        self, journal: _Journal, markers: Markers, from_ms: float, asked_ms: float
    ) -> RescaleRun:
        """Return the measurements of a change, once latency is stable or the time is up."""
        seconds = self.chosen.seconds
        deadline = time.monotonic() + _STABLE_TIMES * seconds
        while True:
            time.sleep(min(1.0, seconds))
            since = markers.since(from_ms / 1e3)
            run = RescaleRun(journal.events(), from_ms, asked_ms, since, seconds)
            if run.scaling_s() is not None or time.monotonic() > deadline:
                return run


def _assigned_since(at_ms: float) -> Callable[[Mapping[str, Any]], bool]:
    return lambda event: event["event"] == "assignment" and event["at_ms"] >= at_ms


class _Journal:
    """Reads the lines of a journal, each once: the driver's process does it beside its own work."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._events: list[dict[str, Any]] = []

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        with self._path.open("rb") as journal:
            journal.seek(self._read)
            whole = journal.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
            self._events += map(json.loads, whole.splitlines())
        return [*self._events]

    def wait(self, query: Any, there: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for an event for which `there` is True."""
        self.wait_until(query, lambda events: any(map(there, events)))

    def wait_until(self, query: Any, there: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until `there` is True for the list of all events so far."""
        deadline = time.monotonic() + _WAIT_S
        while not there(self.events()):
            if not query.isActive:
                query.awaitTermination()  # raises the query's error
            if time.monotonic() > deadline:
                msg = f"what was waited for did not happen within {_WAIT_S:g} s; see {self._path}."
                raise TimeoutError(msg)
            time.sleep(_POLL_S)


def _settled_since(at_ms: float) -> Callable[[Sequence[Mapping[str, Any]]], bool]:
    """Return a condition: the latencies of the last batches since a time are those of a steady stream."""

    def settled(events: Sequence[Mapping[str, Any]]) -> bool:
        last = [e for e in events if e["event"] == "batch" and e["at_ms"] >= at_ms]
        last = last[-_SETTLED_BATCHES:]
        return len(last) == _SETTLED_BATCHES and all(
            b["latency_ms"] and b["latency_ms"]["max"] < _SETTLED_FACTOR * b["duration_ms"]
            for b in last
        )

    return settled


def _all(bench: _Bench, place: str) -> dict[str, Any]:
    progress(f"{place}: warm up")
    bench.warm_up()
    found: dict[str, list[RescaleRun]] = {}
    for name, text in bench.chosen.rows().items():
        if name == "shared" and place == "across_hosts":
            continue
        progress(f"{place}: {text}, {bench.chosen.repeats} times")
        found[name] = bench.changes(text, re.sub(r"\W+", "-", text))
    # all use the longest period of the methods (DRRS V-B), of which stop-restart is none
    interval_s = longest_s(found, ("subscale", *LIVE))
    return {name: _costs(runs, interval_s) for name, runs in found.items()}


def _costs(runs: Sequence[RescaleRun], interval_s: float) -> dict[str, Any]:
    """Return the median of each figure of a strategy's changes, and ``spread``: all of some figures."""
    costs = [asdict(change_of(run, interval_s)) | {"state_bytes": _bytes(run)} for run in runs]
    medians = {key: _median([one[key] for one in costs]) for key in costs[0]}
    spread = {key: [one[key] for one in costs] for key in (*SHORTER, "before_ms", "stable_s")}
    return medians | {"spread": spread}


def _bytes(run: RescaleRun) -> int:
    return int([e for e in run.events if e["event"] == "batch"][-1]["state_bytes"])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    chosen, work = RescaleParameters(**request["parameters"]), Path(request["directory"])
    settings: dict[str, str | int] = {
        "spark.local.dir": str(work / "local"),
        "spark.sql.shuffle.partitions": chosen.hosts * chosen.cores,
        "spark.executor.memory": "700m",
    }

    def in_session(master: str) -> dict[str, Any]:
        spark = session(master=master, name="bench-rescale", **settings)
        sources.register(spark)
        try:
            keys = 0
            if chosen.query not in PAPERS:
                keys = max(1, parse_bytes(chosen.state) // wide.entry_bytes(spark, work))
            return _all(_Bench(spark, chosen, work, keys), request["place"])
        finally:
            spark.stop()

    if request["place"] == "in_host":
        return in_session(f"local[{chosen.cores}]")
    # late and by name: the test kit lies in a layer above the engines
    testing = importlib.import_module("headgate_lab.testing.cluster")
    with testing.StandaloneCluster(work, workers=chosen.hosts, cores=chosen.cores) as cluster:
        return in_session(cluster.master)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="All strategies, in one session.")
    arguments.add_argument("--child", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().child))))
