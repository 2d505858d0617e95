"""Measures how a policy catches up with the SLO of a job that begins minutes behind its topic.

Kafka has the clicks of the last minutes, with their original timestamps, and more clicks come meanwhile.
Kafka's timestamp counts as arrival, so the SLO is missed until the waiting records are served. The
records per batch may be limited: then records wait in the topic, otherwise in headgate's backlog.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.core.errors import EngineError
from headgate.core.slo import parse_slo
from headgate.journal.reader import Tail
from headgate.journal.schema import Batch, Decided, Event
from headgate.spark.cluster.session import session
from headgate.spark.settings.kafka import SERVERS
from headgate.workloads.rates import parse_rate
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.clicks import (
    IN,
    OUT,
    PARTITIONS,
    Clicks,
    clicks,
    clicks_counted,
    connector,
)
from headgate_demo.spark.topics import make_topic, put
from headgate_lab.bench.common import machine, parameters, progress, require

KEPT_S = 10.0
"""The SLO counts as met again when each batch of this many seconds has kept it."""

_POLL_S = 1.0


@dataclass(frozen=True)
class BehindParameters:
    """Holds the parameters of `run`."""

    minutes: float = 10.0
    """Minutes by which the job is behind when it starts; > 0."""

    rate: int = 500
    """Clicks per second, before and during the run; > 0."""

    limit: int = 20_000
    """Most records that one batch may read; 0: no limit."""

    slo: str = "mean < 1 s over 1 s"
    """The SLO, on the mean latency."""

    policy: str = "unified"
    """The policy of the job."""

    slots: int = 1
    """Slots at the start; >= 1."""

    slots_max: int = 4
    """The most slots; >= `slots`."""

    seconds: float = 150.0
    """Time limit from the start of the query until the SLO is met again; > 0."""

    seed: int = 1
    """Seed of the clicks; >= 0."""

    def __post_init__(self) -> None:
        for name in ("minutes", "rate", "seconds"):
            value = getattr(self, name)
            require(value > 0, f"{name}={value} of behind is out of range; use more than 0.")
        require(self.limit >= 0, f"limit={self.limit} of behind is out of range; use 0 or more.")
        fits = 1 <= self.slots <= self.slots_max
        require(fits, f"slots={self.slots} of behind is out of range; use 1 to {self.slots_max}.")
        mean = parse_slo(self.slo).statistic == "mean"
        require(mean, f'slo="{self.slo}" of behind is none of the mean; use "mean < 1 s over 1 s".')


def run(**given: Any) -> dict[str, Any]:
    """Start a job behind its topic, and run it until its SLO is met again.

    Parameters
    ----------
    **given
        Fields of `BehindParameters`.

    Returns
    -------
    dict
        The result of `caught_up`, ``parameters``, ``machine``.

    Raises
    ------
    EngineError
        The job made no batch.
    """
    chosen = parameters(BehindParameters, given)
    with tempfile.TemporaryDirectory(prefix="headgate-behind-") as at, Broker() as broker:
        for topic in (IN, OUT):
            make_topic(broker.servers, topic, PARTITIONS)
        live = Clicks(broker.servers, parse_rate(str(chosen.rate)), chosen.seed + 1)
        now_s = time.time()
        live.start()
        try:
            _fill(broker.servers, chosen, now_s)
            progress(f"{chosen.minutes * 60 * chosen.rate:,.0f} clicks wait")
            journal = _job(broker.servers, chosen, Path(at))
        finally:
            live.stop()
        found = caught_up(list(Tail(journal).events()), _bound_ms(chosen), chosen.rate)
    if found is None:
        msg = "the job made no batch, so nothing can be said of it; look at its journal."
        raise EngineError(msg)
    return found | {"parameters": asdict(chosen), "machine": machine()}


def caught_up(events: Sequence[Event], bound_ms: float, rate: float) -> dict[str, Any] | None:
    """Return how a job caught up; None if it made no batch.

    Parameters
    ----------
    events : sequence of Event
        Events of the journal.
    bound_ms : float
        Bound of the mean latency.
    rate : float
        Arriving records per second.

    Returns
    -------
    dict
        Times in seconds since the begin of the first batch. ``waiting_most``: most records waiting in the
        topic and the backlog; ``gone_s``: time from which fewer records wait than arrive in a second;
        ``met_s``: time of the first batch after which each batch of `KEPT_S` kept the bound;
        ``records_per_s``: served until ``gone_s``; ``batches`` (each with ``at_s``, ``slots``,
        ``served``, ``lag``, ``backlog``, ``latency_ms``, ``duration_ms``) and ``decisions`` (those
        carried out: ``at_s``, ``rule``, ``slots``, ``waiting`` as the policy saw it, ``reason``).
    """
    done = [event for event in events if isinstance(event, Batch)]
    if not done:
        return None
    began_ms = done[0].at_ms - done[0].duration_ms
    batches: list[dict[str, Any]] = [
        {
            "at_s": round((one.at_ms - began_ms) / 1e3, 1),
            "slots": one.slots,
            "served": one.served,
            "lag": sum(one.lag.values()),
            "backlog": one.backlog,
            "latency_ms": None if one.latency_ms is None else round(one.latency_ms.mean),
            "duration_ms": round(one.duration_ms),
        }
        for one in done
    ]
    waiting: list[int] = [one["lag"] + one["backlog"] for one in batches]
    most = max(waiting)
    # the lag of the topic is not known before the second batch
    since = waiting.index(most)
    gone = next((n for n in range(since, len(batches)) if waiting[n] < rate), None)
    gone_s = None if gone is None else batches[gone]["at_s"]
    served = sum(one["served"] for one in batches[: None if gone is None else gone + 1])
    span_s = gone_s or batches[-1]["at_s"]
    return {
        "waiting_most": most,
        "gone_s": gone_s,
        "met_s": met_s(batches, bound_ms),
        "records_per_s": round(served / span_s) if span_s else None,
        "batches": batches,
        "decisions": [
            {
                "at_s": round((one.at_ms - began_ms) / 1e3, 1),
                "rule": one.rule,
                "slots": [wish.slots for wish in one.wishes],
                "waiting": sum(seen.backlog for seen in one.observed),
                "reason": one.reason,
            }
            for one in events
            if isinstance(one, Decided) and one.acts
        ],
    }


def met_s(batches: Iterable[dict[str, Any]], bound_ms: float) -> float | None:
    """Return the time from which each batch of `KEPT_S` kept the bound; None if there is no such time."""
    since: float | None = None
    for one in batches:
        if one["latency_ms"] is None:
            continue  # no record was served, so none was late
        if one["latency_ms"] >= bound_ms:
            since = None
        elif since is None:
            since = one["at_s"]
        elif one["at_s"] - since >= KEPT_S:
            return since
    return None


def lines(found: dict[str, Any]) -> list[str]:
    """Format a result as lines: batches with their waiting records, decisions, times."""
    told = [
        f"{one['at_s']:>7.1f} s  slots {one['slots']}  lag {one['lag']:>7}  backlog {one['backlog']:>6}"
        f"  latency {one['latency_ms']} ms"
        for one in found["batches"]
    ]
    told += [f"{one['at_s']:>7.1f} s  {one['rule']}: {one['reason']}" for one in found["decisions"]]
    told += [f"{name}  {found[name]}" for name in ("waiting_most", "gone_s", "met_s")]
    return told


def _bound_ms(chosen: BehindParameters) -> float:
    return parse_slo(chosen.slo).bound * 1e3


def _fill(servers: str, chosen: BehindParameters, now_s: float) -> None:
    """Write the clicks of the last minutes, with the timestamps that they would have had."""
    random = np.random.default_rng(chosen.seed)
    seconds = round(chosen.minutes * 60)
    for ago in range(seconds, 0, -60):
        put(
            servers,
            IN,
            (
                {"value": value, "timestamp": int((now_s - second) * 1e3)}
                for second in range(ago, max(ago - 60, 0), -1)
                for value in clicks(random, chosen.rate, now_s - second)
            ),
        )


def _job(servers: str, chosen: BehindParameters, work: Path) -> Path:
    """Run the job until its SLO is met again, or until its time limit; return its journal."""
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    settings = {
        "spark.jars": ",".join(map(str, connector())),
        "spark.local.dir": str(work / "local"),
    }
    spark = session(master="local[2]", name="bench-behind", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        reader = spark.readStream.format("kafka").option(SERVERS, servers).option("subscribe", IN)
        if chosen.limit:
            reader = reader.option("maxOffsetsPerTrigger", chosen.limit)
        records = reader.option("startingOffsets", "earliest").load()
        query = (
            hg.writeStream(clicks_counted(records))
            .slots(start=chosen.slots, max=chosen.slots_max)
            .slo(chosen.slo)
            .policy(chosen.policy)
            .format("kafka")
            .option(SERVERS, servers)
            .option("topic", OUT)
            .option("checkpointLocation", str(work / "checkpoint"))
            .start()
        )
        until = time.monotonic() + chosen.seconds
        while time.monotonic() < until and not query.awaitTermination(_POLL_S):
            found = caught_up(list(Tail(query.journal).events()), _bound_ms(chosen), chosen.rate)
            if found and found["met_s"] is not None and found["gone_s"] is not None:
                break
        query.stop()
        return Path(query.journal)
    finally:
        spark.stop()
