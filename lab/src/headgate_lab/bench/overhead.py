"""Measures the time of a tiny batch, relative to a minimal job that shuffles and calls Python once.

Both jobs read the same files in one session with the same settings, in turns. The time of a batch is
Spark's `triggerExecution`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate.spark.cluster.session import session
from headgate_lab.bench.common import (
    Input,
    child,
    machine,
    medians,
    parameters,
    progress,
    require,
    spark_env,
    spread,
)
from headgate_lab.bench.native import (
    HEADGATE,
    consume,
    headgate_phases,
    headgate_writer,
    source,
    triggers,
)

BARE = "bare"
SIDES = (HEADGATE, BARE)

TARGET = 1.2
"""Largest ratio of headgate's median to the bare job's; design, figures to reach."""


@dataclass(frozen=True)
class OverheadParameters:
    """Holds the parameters of `run`."""

    rows: int = 1_000
    """Rows of one batch; >= 1."""

    batches: int = 100
    """Timed batches, per side and over all rounds; >= `rounds`."""

    rounds: int = 4
    """Rounds, in each of which both sides run once; >= 1. Their order swaps from round to round."""

    dropped_batches: int = 5
    """First batches of each turn that do not count, since plans and workers are still cold."""

    warmup_batches: int = 40
    """Batches of each side before the first round; after about 40 the JVM has compiled its code."""

    keys: int = 1_000
    """Distinct keys to draw from."""

    slots: int = 2
    """Slots, and cores."""

    seed: int = 0
    """Seed of the input."""

    sides: tuple[str, ...] = SIDES
    """Sides that run, of `SIDES`; with one side there is no ratio."""

    timeout_s: float = 1_800.0
    """Time limit; then the process is stopped."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sides", tuple(self.sides))
        require(min(self.rows, self.keys, self.slots) >= 1, "rows, keys and slots must be >= 1")
        require(self.batches >= self.rounds >= 1, "batches >= rounds >= 1 must hold")
        require(
            min(self.dropped_batches, self.warmup_batches) >= 0 and self.timeout_s > 0,
            "dropped_batches and warmup_batches must be >= 0, timeout_s > 0",
        )
        require(bool(self.sides) and set(self.sides) <= set(SIDES), f"sides must be among {SIDES}")


def run(**given: Any) -> dict[str, Any]:
    """Return the batch time of both sides, their ratio and the target.

    Parameters
    ----------
    **given
        Fields of `OverheadParameters`.

    Returns
    -------
    dict
        ``sides``: per side the spread of ``trigger_ms`` (with ``iqr``), the medians of Spark's
        parts of a trigger, and headgate's own phases; ``ratio``, ``target``, ``met``;
        ``ratio_by_round``.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    EngineError    The process that runs both sides failed.
    """
    asked = parameters(OverheadParameters, given)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as directory:
        request = json.dumps({"parameters": asdict(asked), "directory": directory})
        module = "headgate_lab.bench.overhead"
        said = child(
            [sys.executable, "-m", module, "--request", request], spark_env(), asked.timeout_s
        )
    sides = {name: _side(turns) for name, turns in said.items()}
    result: dict[str, Any] = {
        "benchmark": "overhead",
        "parameters": asdict(asked),
        "machine": before | {"load_1_min_after": machine()["load_1_min"]},
        "sides": sides,
        "ratio": None,
        "target": TARGET,
        "met": None,
    }
    if set(sides) == set(SIDES):
        ours, bare = sides[HEADGATE], sides[BARE]
        ratio = ours["trigger_ms"]["median"] / bare["trigger_ms"]["median"]
        pairs = zip(ours["median_ms_by_round"], bare["median_ms_by_round"], strict=True)
        result |= {
            "ratio": ratio,
            "met": ratio < TARGET,
            "ratio_by_round": [a / b for a, b in pairs],
        }
    return result


def _side(turns: list[dict[str, Any]]) -> dict[str, Any]:
    batches = [batch for turn in turns for batch in turn["batches"]]
    trigger_ms = spread(b["durations_ms"]["triggerExecution"] for b in batches)
    assert trigger_ms is not None  # `_Turns` refuses a turn without batches
    by_round = [medians([b["durations_ms"] for b in t["batches"]]) for t in turns]
    return {
        "batches": len(batches),
        "trigger_ms": trigger_ms | {"iqr": trigger_ms["p75"] - trigger_ms["p25"]},
        "median_ms_by_round": [m["triggerExecution"] for m in by_round],
        "spark_ms": medians([b["durations_ms"] for b in batches]),
        "phases_ms": medians([phases for turn in turns for phases in turn["phases_ms"]]),
    }


# ---- below: both sides, in a process of their own ------------------------------------------------


class _Turns:
    """Runs the sides in one session, each turn over the same files from a fresh checkpoint."""

    def __init__(self, asked: OverheadParameters, directory: Path) -> None:
        self._asked = asked
        self._directory = directory
        self._count = 0
        self._spark = session(
            master=f"local[{asked.slots}]",
            name="bench-overhead",
            **{
                "spark.sql.shuffle.partitions": asked.slots,
                "spark.sql.adaptive.enabled": False,
                "spark.sql.streaming.numRecentProgressUpdates": 2 * asked.batches
                + asked.warmup_batches
                + 100,
            },
        )

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Return the timed batches of every turn, per side."""
        asked = self._asked
        per_turn = asked.dropped_batches + -(-asked.batches // asked.rounds)
        data = Input(asked.rows, per_turn, asked.keys, asked.seed)
        files = data.write(self._directory / "timed")
        if asked.warmup_batches:
            warm = Input(asked.rows, asked.warmup_batches, asked.keys, asked.seed)
            warmup = warm.write(self._directory / "warmup")
            for side in asked.sides:
                self._turn(side, warmup, 0)
        said: dict[str, list[dict[str, Any]]] = {side: [] for side in asked.sides}
        for turn in range(asked.rounds):
            # the order swaps, so that neither side always runs right after the other
            for side in asked.sides if turn % 2 == 0 else asked.sides[::-1]:
                said[side].append(self._turn(side, files, asked.dropped_batches))
                progress(f"[{turn + 1}/{asked.rounds}] {side}")
        self._spark.stop()
        return said

    def _turn(self, side: str, files: Path, dropped: int) -> dict[str, Any]:
        self._count += 1
        checkpoint = self._directory / f"checkpoint-{self._count}"
        rows = source(self._spark, files)
        if side == HEADGATE:
            writer = headgate_writer(rows, checkpoint, self._asked.slots).format("noop")
        else:
            writer = self._bare_writer(rows, checkpoint)
        query = writer.start()
        query.awaitTermination()
        batches = triggers(query)[dropped:]
        assert batches, f"{side} ran no batch that counts"
        phases = headgate_phases(Path(query.journal))[dropped:] if side == HEADGATE else []
        return {"batches": batches, "phases_ms": phases}

    def _bare_writer(self, rows: DataFrame, checkpoint: Path) -> Any:
        slots = self._asked.slots

        def work(frame: DataFrame, batch_id: int) -> None:
            slot = F.pmod(F.xxhash64("k"), F.lit(slots)).cast("int")
            counted = frame.repartitionById(slots, slot).mapInArrow(consume, "rows bigint")
            counted.write.format("noop").mode("overwrite").save()

        writer = rows.writeStream.foreachBatch(work)
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def _main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run both sides and print one line of JSON.")
    parser.add_argument("--request", required=True, type=json.loads)
    request: Mapping[str, Any] = parser.parse_args(arguments).request
    asked = OverheadParameters(**request["parameters"])
    print(json.dumps(_Turns(asked, Path(request["directory"])).run()), flush=True)


if __name__ == "__main__":
    _main()
