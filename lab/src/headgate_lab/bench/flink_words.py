"""Runs the word counts of `words` on Flink: `UNNEST` before `GROUP BY`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headgate.core.errors import EngineError
from headgate_lab.bench import flink, words
from headgate_lab.bench.common import progress, spread
from headgate_lab.bench.sides import check
from headgate_lab.workloads.tweets import TWEETS, VOCABULARY, tweets

BATCHES, DROPPED = 5, 2
"""Number of timed files, and how many of them are excluded from the rate; as on Spark."""

TIMES: Mapping[str, float] = {"words": 4, "pairs-3": 0.5, "pairs-10": 0.25, "pairs-any": 0.25}
"""Tweets per file, relative to a batch on Spark; chosen so that runs differ by seconds, not minutes."""

LEFT_OUT: Mapping[str, tuple[str, ...]] = {"flink-rocksdb": ("pairs-3", "pairs-10")}
"""Cases that a backend skips to save time."""


def write(directory: Path, batches: int, rows: int) -> str:
    """Write the tweets of `words.write` as CSV files of `rows` tweets; return their folder.

    The words of a tweet are one field, which Flink reads as an array. An existing folder is not changed.
    """
    if not directory.exists():
        directory.mkdir(parents=True)
        different = [";".join(str(w) for w in tweet if w >= 0) for tweet in tweets().tolist()]
        for index in range(batches):
            numbers = range(index * rows, (index + 1) * rows)
            lines = "".join(f"{different[number % TWEETS]}\n" for number in numbers)
            (directory / f"batch-{index:05d}.csv").write_text(lines)
    return str(directory)


def query(case: str) -> str:
    """Return the SQL of `words.query`, reading ``{source}``."""
    word = "CAST(word AS BIGINT)"
    if (distance_max := words.DISTANCES[case]) == 0:
        key, split = word, "UNNEST(words) AS a (word)"
    else:
        # positions count from 1, and a slice includes both ends
        others = f"ARRAY_SLICE(words, i + 1, i + {distance_max})"
        key = f"{word} * {VOCABULARY} + other"
        split = (
            f"UNNEST(words) WITH ORDINALITY AS a (word, i) CROSS JOIN UNNEST({others}) AS b (other)"
        )
    keyed = f"SELECT {key} AS key FROM {{source}} CROSS JOIN {split}"
    return f"SELECT key, COUNT(*) AS c FROM ({keyed}) GROUP BY key"


def compare(
    cases: tuple[str, ...], directory: Path, *, rows: int, slots: int, timeout_s: float
) -> list[dict[str, Any]]:
    """Return an entry per backend and case as `words.compare` does, or the reason why it was ``skipped``.

    Parameters
    ----------
    cases : tuple of str
        Keys of `words.DISTANCES`.
    directory : path
        For files and checkpoints; must be empty.
    rows : int
        Tweets per batch on Spark; a file for Flink has `TIMES` as many, at least one.
    slots : int
        Flink's parallelism.
    timeout_s : float
        Time limit of each backend.

    Returns
    -------
    list of dict
        ``rows_per_s`` are tweets/s, None if the difference of times is within the noise; ``flink`` has
        the times, as returned by `flink.timing`.

    Raises
    ------
    WrongAnswer    Flink's answer is wrong.
    """
    python, version = flink.find_flink()
    if python is None:
        progress(f"flink: skipped, {version}")
        return _without_rates("skipped", version, tuple(flink.BACKENDS), cases)
    entries = []
    for engine in flink.BACKENDS:
        left_out = tuple(case for case in cases if case in LEFT_OUT.get(engine, ()))
        entries += _without_rates("skipped", "left out to save time", (engine,), left_out)
        asked = tuple(case for case in cases if case not in left_out)
        if not asked:
            continue
        job = flink.Job(
            columns="words ARRAY<INT>",
            result=("key", "c"),
            scan="SELECT CAST(words[1] AS BIGINT) FROM {source} WHERE words[1] >= 0",
            selects={case: _select(case, directory, rows) for case in asked},
            directory=str(directory / engine),
            parallelism=slots,
        )
        try:
            said = flink.measure(python, engine, job, timeout_s)
        except EngineError as error:
            # as in `sides`: the numbers of other backends are still valid
            progress(f"{engine}: FAILED, {error}")
            entries += _without_rates("failed", str(error), (engine,), asked)
            continue
        entries += [_entry(engine, case, rows, said[case], version) for case in asked]
    return entries


def _without_rates(
    outcome: str, why: str, engines: tuple[str, ...], cases: tuple[str, ...]
) -> list[dict[str, Any]]:
    return [{"engine": e, "case": case, outcome: why} for e in engines for case in cases]


def _tweets_per_file(case: str, rows: int) -> int:
    return max(1, int(rows * TIMES[case]))


def _select(case: str, directory: Path, rows: int) -> flink.Select:
    tweets_per_file = _tweets_per_file(case, rows)
    return flink.Select(
        sql=query(case),
        check=write(directory / "check", words.CHECK_BATCHES, words.CHECK_ROWS),
        part=write(directory / f"part-{tweets_per_file}", DROPPED, tweets_per_file),
        all=write(directory / f"all-{tweets_per_file}", BATCHES, tweets_per_file),
    )


def _entry(
    engine: str, case: str, rows: int, said: Mapping[str, Any], version: str
) -> dict[str, Any]:
    got = {name: np.array(column, np.int64) for name, column in said["updates"].items()}
    answer_rows = check(f"{engine}, {case}", words.check_answer(case), got)
    timing, rows_per_file = flink.timing(said, version), _tweets_per_file(case, rows)
    rate = rows_per_file * (BATCHES - DROPPED) / timing["difference_s"] if timing["clear"] else None
    found = (
        "too few tweets to tell a rate from noise" if rate is None else f"{rate / 1e6:.3f} M rows/s"
    )
    progress(f"{engine}, {case}: answer right, {found}")
    return {
        "engine": engine,
        "case": case,
        "answer_rows": answer_rows,
        "rows_per_batch": rows_per_file,
        "rows_per_s": None if rate is None else spread([rate]),
        "flink": timing,
    }
