"""Measures count and sum per key in update mode with headgate, Spark's engines and Flink.

Every engine runs in its own process, first on a small input whose answer is checked key by key, then
timed on files that all engines share. The process is ``python -m headgate_lab.bench.aggregate --engine X
--request JSON``; it prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.core.errors import ConfigError, EngineError, nearest
from headgate_lab.bench import flink
from headgate_lab.bench.common import (
    Answer,
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
from headgate_lab.bench.native import BASELINES, FUNCTIONS, HEADGATE, PROCESSORS, measure

ENGINES = (HEADGATE, *BASELINES, *flink.BACKENDS)
_KNOWN = (*ENGINES, *PROCESSORS)
_FURTHER = ("headgate", "spark-rocksdb", "spark-memory")
"""Engines that can compute a further aggregate."""

FEW_KEYS = 20_000
MANY_KEYS = 1_000_000

TARGETS: Mapping[tuple[int, str], float] = {
    (MANY_KEYS, "spark-rocksdb"): 4.0,
    (MANY_KEYS, "spark-memory"): 2.0,
    (MANY_KEYS, "flink-rocksdb"): 4.0,
    (FEW_KEYS, "spark-rocksdb"): 1.0,
    (FEW_KEYS, "spark-memory"): 1.0,
}
"""(keys, engine) -> least ratio of headgate's rows/s to that engine's; design, figures to reach."""

FURTHER_TARGETS: Mapping[tuple[int, str], float] = {
    (MANY_KEYS, "spark-rocksdb"): 2.0,
    (FEW_KEYS, "spark-rocksdb"): 1.0,
    (FEW_KEYS, "spark-memory"): 1.0,
}
"""The same with a further aggregate for which headgate has no kernel."""


@dataclass(frozen=True)
class AggregateParameters:
    """Holds the parameters of `run`."""

    rows_per_batch: int = MANY_KEYS
    """Rows per batch, which is one file; >= 1. As in the design's table."""

    batches: int = 6
    """Batches per engine and round; more than `dropped_batches`."""

    keys: tuple[int, ...] = (FEW_KEYS, MANY_KEYS)
    """Numbers of distinct keys; all engines run with each."""

    engines: str | tuple[str, ...] = "all"
    """``"all"``, or names of `ENGINES` and `PROCESSORS`; ``"flink"`` means both of Flink's."""

    function: str = ""
    """A further aggregate, a key of `native.FUNCTIONS`; only for headgate and Spark's two stores."""

    seed: int = 0
    """Seed of the input."""

    repeats: int = 1
    """Rounds; each runs every engine once, so that a noisy minute affects all engines."""

    slots: int = 2
    """Slots of headgate, shuffle partitions of Spark, parallelism of Flink; and cores of Spark."""

    dropped_batches: int = 2
    """First batches of a run that are excluded: compilation, and first growth of the state."""

    slow_rows_per_batch: int = 200_000
    """Most rows per batch for engines that call Python per key, where 1,000,000 take a minute."""

    check_rows_per_batch: int = 20_000
    """Rows per batch of the input whose answer is checked."""

    check_keys: int = 1_000
    """Keys of the input whose answer is checked."""

    directory: str | None = None
    """Directory in which the input remains; None for a temporary directory."""

    timeout_s: float = 1_800.0
    """Time limit; an engine's process that takes longer is stopped and counts as failed."""

    def __post_init__(self) -> None:
        # JSON gives lists
        object.__setattr__(self, "keys", tuple(self.keys))
        require(all(k >= 1 for k in self.keys) and bool(self.keys), "keys needs numbers >= 1")
        sizes = (self.rows_per_batch, self.slow_rows_per_batch, self.repeats, self.slots)
        checks = (self.check_rows_per_batch, self.check_keys)
        require(min(*sizes, *checks) >= 1, "rows, keys, repeats and slots must be >= 1")
        require(
            self.batches > self.dropped_batches >= 0,
            f"batches ({self.batches}) must be more than dropped_batches ({self.dropped_batches})",
        )
        require(self.timeout_s > 0, "timeout_s must be > 0")
        if self.function not in FUNCTIONS:
            msg = f"no function {self.function!r}{nearest(self.function, FUNCTIONS)}"
            raise ConfigError(msg)
        names = self.names()
        others = set(names) - set(_FURTHER)
        require(not (self.function and others), f"function is for {', '.join(_FURTHER)} only")

    def names(self) -> tuple[str, ...]:
        """Return the chosen engines, in the order in which they run.

        Raises
        ------
        ConfigError    A name is unknown.
        """
        asked = self.engines.split(",") if isinstance(self.engines, str) else [*self.engines]
        if asked == ["all"]:
            return _FURTHER if self.function else ENGINES
        if "flink" in asked:
            asked = [*(name for name in asked if name != "flink"), *flink.BACKENDS]
        for name in asked:
            if name not in _KNOWN:
                msg = f"no engine {name!r}{nearest(name, _KNOWN)}"
                raise ConfigError(msg)
        return tuple(name for name in _KNOWN if name in asked)

    def input_of(self, engine: str, keys: int) -> Input:
        """Return the timed input of an engine; engines that call Python per key get fewer rows."""
        rows = self.rows_per_batch
        if _slow(engine):
            rows = min(rows, self.slow_rows_per_batch)
        return Input(rows, self.batches, keys, self.seed)

    def check_input(self) -> Input:
        """Return the input whose answer is checked; three batches, so that state is updated."""
        return Input(self.check_rows_per_batch, 3, self.check_keys, self.seed + 1)


def run(**given: Any) -> dict[str, Any]:
    """Run the engines and return rows/s, ratios of headgate to the others, targets and phases.

    Parameters
    ----------
    **given
        Fields of `AggregateParameters`.

    Returns
    -------
    dict
        ``parameters``, ``machine``, ``engines`` (an entry per engine and number of keys, or the reason
        why it was skipped), ``ratios`` with targets, ``failed``.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    WrongAnswer    An engine's answer is wrong.
    """
    asked = parameters(AggregateParameters, given)
    before = machine()
    if asked.directory is not None:
        entries = _Rounds(asked, Path(asked.directory)).run()
    else:
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as directory:
            entries = _Rounds(asked, Path(directory)).run()
    return {
        "benchmark": "aggregate",
        "parameters": asdict(asked),
        "machine": before | {"load_1_min_after": machine()["load_1_min"]},
        "engines": entries,
        "ratios": _ratios(entries, FURTHER_TARGETS if asked.function else TARGETS),
        "failed": [e["engine"] for e in entries if "failed" in e],
    }


class _Rounds:
    """Runs every engine once per round, and collects the results."""

    def __init__(self, asked: AggregateParameters, directory: Path) -> None:
        self._asked = asked
        self._directory = directory
        self._runs = 0

    def run(self) -> list[dict[str, Any]]:
        """Return one entry per engine and number of keys."""
        asked, said = self._asked, dict[tuple[str, int], list[dict[str, Any]]]()
        for turn in range(asked.repeats):
            for keys in asked.keys:
                for engine in asked.names():
                    earlier = said.setdefault((engine, keys), [])
                    if earlier and "rows" not in earlier[-1]:
                        continue  # the engine was skipped or failed, and would be again
                    outcome = self._once(engine, keys)
                    progress(f"[{turn + 1}/{asked.repeats}] {keys} keys {_line(engine, outcome)}")
                    earlier.append(outcome)
        return [
            {"engine": engine, "keys": keys, **_entry(outcomes)}
            for (engine, keys), outcomes in said.items()
        ]

    def _once(self, engine: str, keys: int) -> dict[str, Any]:
        why = _why_not(engine, keys, self._asked.keys)
        if why is not None:
            return {"skipped": why}
        self._runs += 1
        work = self._directory / f"run-{self._runs}"
        work.mkdir(parents=True)
        try:
            if engine in flink.BACKENDS:
                return self._flink(engine, self._asked.input_of(engine, keys), work)
            return self._spark(engine, self._asked.input_of(engine, keys), work)
        except EngineError as error:
            # numbers of other engines are still valid; `failed` in the result has the missing ones
            return {"failed": str(error)}
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _files(self, data: Input, suffix: str, batches: int | None = None) -> str:
        name = f"{suffix}-{data.keys}-{data.rows_per_batch}-{data.seed}-{batches or data.batches}"
        directory = self._directory / name
        if not directory.exists():
            progress(f"writing {name}")
            data.write(directory, suffix, batches)
        return str(directory)

    def _spark(self, engine: str, data: Input, work: Path) -> dict[str, Any]:
        check, asked = self._asked.check_input(), self._asked
        request = {
            "check": self._files(check, "parquet"),
            "timed": self._files(data, "parquet"),
            "directory": str(work),
            "batches": asked.batches,
            "slots": asked.slots,
            "function": asked.function,
        }
        module = [sys.executable, "-m", "headgate_lab.bench.aggregate"]
        command = [*module, "--engine", engine, "--request", json.dumps(request)]
        said = child(command, spark_env(), asked.timeout_s)
        totals = check.answer().check(Answer.load(work / "answer.npz"), engine)
        batches = said["batches"]
        rows = [batch["rows"] for batch in batches]
        if rows != [data.rows_per_batch] * data.batches:
            # with other batches the rates would not be comparable
            msg = (
                f"{engine} made batches of {rows} rows, not {data.batches} of {data.rows_per_batch}"
            )
            raise EngineError(msg)
        kept = batches[asked.dropped_batches :]
        return {
            "rows": data.rows_per_batch,
            "answer": totals,
            "batch_ms": [b["durations_ms"]["triggerExecution"] for b in batches],
            "kept_ms": [b["durations_ms"]["triggerExecution"] for b in kept],
            "spark_ms": medians([b["durations_ms"] for b in kept]),
            "phases_ms": medians(said["phases_ms"][asked.dropped_batches :]),
            "settings": said["settings"],
        }

    def _flink(self, engine: str, data: Input, work: Path) -> dict[str, Any]:
        python, version = flink.find_flink()
        assert python is not None  # `_why_not` asked before
        asked, check = self._asked, self._asked.check_input()
        # the rate needs a difference: without dropped batches, `part` is the first file
        part = max(1, asked.dropped_batches)
        require(data.batches > part, "Flink's rate needs more batches than are dropped, and >= 2")
        job = flink.Job(
            columns="k BIGINT, v BIGINT",
            result=("k", "c", "s"),
            scan="SELECT k FROM {source} WHERE v >= 0",
            selects={
                "aggregate": flink.Select(
                    sql="SELECT k, COUNT(*) AS c, SUM(v) AS s FROM {source} GROUP BY k",
                    check=self._files(check, "csv"),
                    part=self._files(data, "csv", part),
                    all=self._files(data, "csv"),
                )
            },
            directory=str(work),
            parallelism=asked.slots,
        )
        said = flink.measure(python, engine, job, asked.timeout_s)["aggregate"]
        columns = (np.array(said["updates"][name], np.int64) for name in job.result)
        totals = check.answer().check(Answer.of_updates([tuple(columns)]), engine)  # type: ignore[list-item]
        timing = flink.timing(said, version)
        # Flink has no batches: take the time of an additional file
        file_ms = timing["difference_s"] / (data.batches - part) * 1e3
        return {
            "rows": data.rows_per_batch,
            "answer": totals,
            "kept_ms": [file_ms] if timing["clear"] else [],
            "flink": timing,
        }


def _slow(engine: str) -> bool:
    per_key = engine in PROCESSORS and engine != "headgate-arrow"
    return per_key or (engine in BASELINES and BASELINES[engine].slow)


def _why_not(engine: str, keys: int, all_keys: Sequence[int]) -> str | None:
    """Return the reason why an engine does not run with so many keys, or None."""
    if _slow(engine) and keys > max(FEW_KEYS, min(all_keys)):
        return f"calls Python once per key and batch: not run above {FEW_KEYS} keys"
    if engine in BASELINES:
        return BASELINES[engine].missing()
    if engine in flink.BACKENDS:
        python, found = flink.find_flink()
        return found if python is None else None
    return None


def _line(engine: str, outcome: Mapping[str, Any]) -> str:
    if "skipped" in outcome:
        return f"{engine}: skipped, {outcome['skipped']}"
    if "failed" in outcome:
        return f"{engine}: FAILED, {outcome['failed']}"
    if not outcome["kept_ms"]:
        return f"{engine}: answer right, too few rows to tell a rate from noise"
    rate = outcome["rows"] / statistics.median(outcome["kept_ms"]) / 1e3
    return f"{engine}: answer right, {rate:.3f} M rows/s"


def _entry(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of one engine's rounds, together."""
    good = [outcome for outcome in outcomes if "rows" in outcome]
    if len(good) < len(outcomes):
        return outcomes[-1]
    rows, last = good[0]["rows"], good[-1]
    kept_ms = [ms for outcome in good for ms in outcome["kept_ms"]]
    more = ("answer", "spark_ms", "phases_ms", "settings", "flink")
    return {
        "rows_per_batch": rows,
        "rows_per_s": spread(rows / ms * 1e3 for ms in kept_ms),
        "rows_per_s_by_round": [
            rows / statistics.median(o["kept_ms"]) * 1e3 for o in good if o["kept_ms"]
        ],
        "batch_ms": [outcome.get("batch_ms", outcome["kept_ms"]) for outcome in good],
        **{name: last[name] for name in more if name in last},
    }


def _ratios(
    entries: Sequence[Mapping[str, Any]], targets: Mapping[tuple[int, str], float] = TARGETS
) -> list[dict[str, Any]]:
    """Return the ratios of headgate's median rows/s to every other engine's, with the targets."""
    rates = {(e["keys"], e["engine"]): e for e in entries if e.get("rows_per_s")}
    found = []
    for (keys, engine), entry in rates.items():
        ours = rates.get((keys, HEADGATE))
        if engine == HEADGATE or ours is None:
            continue
        ratio = ours["rows_per_s"]["median"] / entry["rows_per_s"]["median"]
        target = targets.get((keys, engine))
        found.append(
            {
                "keys": keys,
                "engine": engine,
                "ratio": ratio,
                "target": target,
                "met": None if target is None else ratio >= target,
                # with fewer rows per batch the other engine's rate has more fixed cost per row
                "same_rows_per_batch": ours["rows_per_batch"] == entry["rows_per_batch"],
            }
        )
    return found


# ---- below: one engine, in its own process -------------------------------------------------------


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run one engine and print one line of JSON.")
    parser.add_argument("--engine", required=True, choices=[HEADGATE, *BASELINES, *PROCESSORS])
    parser.add_argument("--request", required=True, type=json.loads)
    given = parser.parse_args(arguments)
    print(json.dumps(measure(given.engine, given.request)), flush=True)


if __name__ == "__main__":
    _main()
