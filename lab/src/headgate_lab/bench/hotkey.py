"""Tests the SLO of a job with one hot key before and after a split of its key group, and its answer.

The query computes count and sum per key, in update mode. One key has 60 % of the records, more than a
slot can serve. The first side has only the paper's treatments, the second may split. On the second side,
when the SLO has been met for a while, the driver and its JVM are killed and start again from the
checkpoint. Then the Python worker of the slot that owns the hot key is killed twice: while there is a
backlog, and again later. The load goes on until the backlog must be drained, and for half the time of a
run more. At the end the content of the sink is compared with the input.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import EngineError
from headgate.core.slo import parse_slo
from headgate.journal import Applied, AssignmentChange, Batch, Decided, Restart, Retry, read
from headgate.spark.cluster.session import session
from headgate_lab.bench.common import machine, parameters, progress, require, spark_env
from headgate_lab.testing import faults

_FILE_S = 0.5
_SETTLED_S = 12.0
"""Seconds after a split, or a restart, in which a backlog may drain; the SLO is judged afterwards."""

_STRIKES = (10, 60)
"""Steps after the driver's restart in which the worker is killed; in the second there is no backlog."""

_START_S = 120.0
_END_S = 240.0
_THREADS = 4
_SIDES = {"whole": "streamswitch(0.2, split=0)", "split": "streamswitch(0.2)"}
_MEASURED = "measured"


@dataclass(frozen=True)
class HotkeyParameters:
    """Holds the parameters of `run`."""

    seconds: float = 60.0
    """Length of the load on each side, > 0. With kills it goes on until their backlog has drained, and
    for half as long again."""

    rate: int = 3_500
    """Records per second; > 0."""

    share: float = 0.6
    """Share of the hot key's records; in (0, 1)."""

    cost: str = "slot rate"
    """Cost of a record. ``slot rate``: slots serve `slot_rate`; ``measured``: each row takes
    ``1 / slot_rate`` longer, which the control loop must measure."""

    slot_rate: float = 1_000.0
    """Records per second that a slot serves; > 0."""

    slo: str = "mean < 3 s over 2 s"
    """The SLO."""

    slots: int = 2
    """Slots at the start; >= 1."""

    slots_max: int = 8
    """The most slots; >= `slots`."""

    kill: bool = True
    """Whether a worker and the driver are killed on the side that splits."""

    sides: str = "whole, split"
    """Sides that run, separated by commas."""

    seed: int = 1
    """Seed of the load; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds} of hotkey must be above 0.")
        require(0 < self.share < 1, f"share={self.share} of hotkey must lie between 0 and 1.")
        require(self.rate > 0, f"rate={self.rate} of hotkey is out of range; use 1 or more.")
        require(self.slot_rate > 0, f"slot_rate={self.slot_rate} of hotkey must be above 0.")
        known = self.cost in ("slot rate", _MEASURED)
        require(known, f'cost="{self.cost}" of hotkey is unknown; use slot rate or measured.')
        for side in self.names():
            require(side in _SIDES, f'side "{side}" of hotkey is unknown; use whole, split.')

    def names(self) -> list[str]:
        """Return the sides."""
        return [name.strip() for name in self.sides.split(",")]


def run(**given: Any) -> dict[str, Any]:
    """Run both sides, one after the other.

    Parameters
    ----------
    **given
        Fields of `HotkeyParameters`.

    Returns
    -------
    dict
        ``sides`` (by name: ``met``, the share of seconds whose mean latency was within the bound;
        ``met_before`` the split; ``met_after`` it, once the backlog had drained, without the
        ``settling_s`` after the kill of the driver; ``met_until_kill`` and ``met_after_kill``, the parts
        of ``met_after``; ``met_all``, as ``met_after`` with ``settling_s``; ``latency_ms_mean`` of
        ``all``, ``before`` and ``after``; ``down_s``: from the kill to the first batch; ``recovered_s``:
        from the kill until the SLO was met until the end; ``split``: the reasons; ``slots``;
        ``changes``, ``retries``, ``restarts``; ``records``), ``verified``, ``parameters``, ``machine``.

    Raises
    ------
    EngineError
        An answer differs, or a kill did not hit its process.
    """
    chosen = parameters(HotkeyParameters, given)
    sides = {}
    for name in chosen.names():
        with tempfile.TemporaryDirectory(prefix="headgate-hotkey-") as work:
            progress(f"hotkey: {name}")
            sides[name] = _side(chosen, name, Path(work))
    return {
        "sides": sides,
        "verified": True,
        "parameters": asdict(chosen),
        "machine": machine(),
    }


class _Load:
    """Writes files of records at a constant rate, and computes the right answer."""

    def __init__(self, chosen: HotkeyParameters, folder: Path) -> None:
        self._chosen, self._folder = chosen, folder
        self.truth: dict[int, list[int]] = {}
        self.until_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the load, for `seconds` or, if set later, until `until_s` (since 1970)."""
        self.until_s = time.time() + self._chosen.seconds
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        draw, chosen, since = np.random.default_rng(self._chosen.seed), self._chosen, time.time()
        for number in itertools.count():
            if since + _FILE_S > self.until_s:
                return
            time.sleep(max(0.0, since + _FILE_S - time.time()))
            rows = int(chosen.rate * _FILE_S)
            keys = np.where(draw.random(rows) < chosen.share, 0, draw.integers(1, 200, rows))
            values = draw.integers(0, 1000, rows)
            due = (np.linspace(since, since + _FILE_S, rows) * 1e6).astype(np.int64)
            stamps = pa.array(due).cast(pa.timestamp("us", tz="UTC"))
            table = pa.table({"key": keys, "value": values, "ts": stamps})
            pq.write_table(table, self._folder / f".{number}")
            (self._folder / f".{number}").rename(self._folder / f"{number:06d}.parquet")
            counts, sums = np.bincount(keys), np.bincount(keys, values).astype(np.int64)
            for key in np.flatnonzero(counts).tolist():
                held = self.truth.setdefault(key, [0, 0])
                held[0] += int(counts[key])
                held[1] += int(sums[key])
            since += _FILE_S


def _side(chosen: HotkeyParameters, name: str, work: Path) -> dict[str, Any]:
    for folder in ("in", "out"):
        (work / folder).mkdir()
    kills, killed = chosen.kill and name == "split", None
    load, request = _Load(chosen, work / "in"), {"side": name, "parameters": asdict(chosen)}
    job = _start(request, work)
    _wait((work / "ready").exists, _START_S, "the query did not start")
    load.start()
    if kills:
        _wait(lambda: _split_s(work) is not None, chosen.seconds, "no split came")
        time.sleep(_SETTLED_S + chosen.seconds / 4)
        load.until_s = math.inf
        since_s = time.time()
        (work / "ready").unlink()
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        job = _start(request | {"kill_worker": True}, work)
        _wait((work / "ready").exists, _START_S, "the query did not start again")
        killed = _Kill(since_s, time.time() - since_s, _settling_s(chosen, work, since_s))
        load.until_s = since_s + killed.settling_s + chosen.seconds / 2
    load.join()
    (work / "over").touch()
    try:
        job.wait(timeout=_END_S)
    except subprocess.TimeoutExpired as error:
        os.killpg(job.pid, signal.SIGKILL)
        msg = f"the side {name} did not end within {_END_S:g} s"
        raise EngineError(msg) from error
    if job.returncode:
        msg = f"the side {name} failed: {(work / 'said').read_text()[-600:]}"
        raise EngineError(msg)
    _verify(work, load.truth)
    figures = _figures(chosen, work, killed)
    if killed is not None and not figures["retries"]:
        raise EngineError("the worker was to be killed, and no step ran again")
    return figures


@dataclass(frozen=True)
class _Kill:
    """Holds the time of a driver's kill, and the times to its first batch and to a drained backlog."""

    since_s: float
    down_s: float
    settling_s: float

    @property
    def settled_at_s(self) -> float:
        """Return the time from which the SLO is judged again, seconds since 1970."""
        return self.since_s + self.settling_s


def _settling_s(chosen: HotkeyParameters, work: Path, since_s: float) -> float:
    """Return the time after a kill in which the slots can drain the backlog."""
    down_s = time.time() - since_s
    slots = next(e.slots for e in reversed(_events(work)) if isinstance(e, Batch))
    spare = slots * chosen.slot_rate - chosen.rate
    if spare <= 0.0:
        msg = f"{slots} slots at {chosen.slot_rate:g} records/s cannot work off a backlog"
        raise EngineError(msg)
    return down_s + down_s * chosen.rate / spare + _SETTLED_S


def _start(request: Mapping[str, Any], work: Path) -> subprocess.Popen[bytes]:
    told = json.dumps({**request, "work": str(work)})
    command = [sys.executable, "-m", "headgate_lab.bench.hotkey", "--child", told]
    with (work / "said").open("ab") as said:
        return subprocess.Popen(
            command, env=spark_env(), stdout=said, stderr=said, start_new_session=True
        )


def _wait(condition: Any, deadline_s: float, why: str) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise EngineError(why)
        time.sleep(0.2)


def _events(work: Path) -> list[Any]:
    found = sorted((work / "checkpoint").rglob("journal.jsonl"))
    return list(read(found[0])) if found else []


def _split_s(work: Path) -> float | None:
    """Return the time at which the first split came into force, s since 1970; None if there was none."""
    changes = [e for e in _events(work) if isinstance(e, AssignmentChange) and e.split]
    return changes[0].at_ms / 1e3 if changes else None


def _owner(work: Path) -> int:
    """Return the owner of the key group that was split last, a slot with records in every step."""
    split = [e for e in _events(work) if isinstance(e, AssignmentChange) and e.split]
    return split[-1].split[0][1]


def _verify(work: Path, truth: Mapping[int, list[int]]) -> None:
    """Compare the last count and sum of each key with the input."""
    found: dict[int, list[int]] = {}
    for file in sorted((work / "out").glob("*.json")):
        for key, *values in json.loads(file.read_text()):
            found[key] = values
    if found != dict(truth):
        wrong = sum(found.get(key) != values for key, values in truth.items())
        msg = f"{wrong} of {len(truth)} keys have a wrong count or sum; hot key: {found.get(0)}."
        raise EngineError(msg)


def _figures(chosen: HotkeyParameters, work: Path, killed: _Kill | None) -> dict[str, Any]:
    events, split_s = _events(work), _split_s(work)
    batches = [e for e in events if isinstance(e, Batch) and e.latency_ms is not None]
    bound_ms = parse_slo(chosen.slo).bound * 1e3
    seconds: dict[int, list[float]] = {}
    for batch in batches:
        assert batch.latency_ms is not None
        held = seconds.setdefault(batch.at_ms // 1000, [0.0, 0.0])
        records = sum(count for _, count in batch.histogram)
        held[0] += records
        held[1] += records * batch.latency_ms.mean
    begun_s = min(seconds, default=0)
    ends_s = max((b.at_ms / 1e3 for b in batches if b.arrived), default=begun_s)
    down_s, back_s = (ends_s, ends_s) if killed is None else (killed.since_s, killed.settled_at_s)

    def share(*spans: tuple[float, float]) -> tuple[float | None, float | None]:
        """Return the share of seconds within the bound, and the mean latency of their records."""
        inside = [v for at, v in seconds.items() if any(a <= at < b for a, b in spans)]
        if not inside:
            return None, None
        met = sum(total / count <= bound_ms for count, total in inside) / len(inside)
        mean = sum(total for _, total in inside) / sum(count for count, _ in inside)
        return round(met, 4), round(mean, 1)

    after_s = (split_s or ends_s) + _SETTLED_S
    met, mean = share((begun_s, ends_s))
    before, before_mean = share((begun_s, split_s or ends_s))
    after, after_mean = share((after_s, down_s), (back_s, ends_s))
    late = [
        at for at, (count, sum_ms) in seconds.items() if at < ends_s and sum_ms > count * bound_ms
    ]
    decided = [
        e for e in events if isinstance(e, Decided) and any(w.kind == "split" for w in e.wishes)
    ]
    return {
        "met": met,
        "met_before": before,
        "met_after": after,
        "met_until_kill": share((after_s, down_s))[0],
        "met_after_kill": share((back_s, ends_s))[0],
        "met_all": share((after_s, ends_s))[0],
        "down_s": None if killed is None else round(killed.down_s, 1),
        "settling_s": None if killed is None else round(killed.settling_s, 1),
        "recovered_s": None if killed is None else round(max([*late, down_s - 1]) + 1 - down_s, 1),
        "latency_ms_mean": {"all": mean, "before": before_mean, "after": after_mean},
        "split": [e.reason for e in decided],
        "slots": max((b.slots for b in batches), default=0),
        "changes": sum(isinstance(e, Applied) for e in events),
        "retries": sum(isinstance(e, Retry) for e in events),
        "restarts": sum(isinstance(e, Restart) for e in events),
        "records": sum(b.served for b in events if isinstance(b, Batch)),
    }


# --- in the child --------------------------------------------------------------------------------


def _child(told: Mapping[str, Any]) -> None:
    chosen, work = HotkeyParameters(**told["parameters"]), Path(told["work"])
    spark = session(master=f"local[{_THREADS}]", name="bench-hotkey")
    rows = spark.readStream.schema("key bigint, value bigint, ts timestamp")
    counted = rows.parquet(str(work / "in")).groupBy("key")
    answer = counted.agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    def deliver(frame: Any, batch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        whole = work / "out" / f".{batch}"
        whole.write_text(json.dumps(found))
        whole.rename(work / "out" / f"{batch:09d}.json")

    writer = (
        hg.writeStream(answer)
        .outputMode("update")
        .foreachBatch(deliver)
        .slo(chosen.slo)
        .policy(_SIDES[told["side"]])
        .slots(start=chosen.slots, max=chosen.slots_max)
        .keyGroups(32)
        .option("headgate.arrival", "ts")
        .option("headgate.preaggregate", "off")
        .option("checkpointLocation", str(work / "checkpoint"))
    )
    planned = []
    if chosen.cost == _MEASURED:
        each_us = 1e6 / chosen.slot_rate
        planned += [faults.slow(slot, each_us) for slot in range(chosen.slots_max)]
    else:
        writer = writer.option("headgate.slotRate", chosen.slot_rate)
    if told.get("kill_worker"):
        last = max(event.step for event in _events(work) if isinstance(event, Batch))
        owner = _owner(work)
        planned += [faults.kill_worker(slot=owner, step=last + n, groups=0) for n in _STRIKES]
    faults.inject(writer, *planned)
    query = writer.start()
    _wait(lambda: query.lastProgress is not None, _START_S, "no batch came")
    (work / "ready").touch()
    _wait((work / "over").exists, chosen.seconds * 4 + _END_S, "the load did not end")
    query.drain(timeout_s=_END_S)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", required=True)
    _child(json.loads(parser.parse_args().child))
