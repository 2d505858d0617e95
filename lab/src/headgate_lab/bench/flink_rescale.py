"""Measures Flink's way to change the parallelism: stop with a savepoint, start again from it.

This is a second external baseline of a change of slots, beside `repartition`. Flink SQL computes the
aggregate of `wide` with RocksDB. The cluster runs before, during and after the change, so its start does
not count. Files bring records at a steady rate, also while no job runs: those records wait. The result is
the time from the request to the first row that the new job writes.

This file has two roles, as `flink` has. Imported, it starts the measurement. Run as a script by Flink's
interpreter, it is the measurement; so its top imports nothing of headgate.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

ENTRY_BYTES = 280
"""Bytes of an entry in headgate's layout; a test compares them with `wide.entry_bytes`."""

SUMS = 30
"""Sums per key; as `wide.SUMS`, which Flink's interpreter cannot import."""

FILE_S = 0.1
"""Seconds between two files of records. Chosen: fewer files, later records."""

SAMPLE = 1_000
"""While keys are loaded, the job writes the rows of one key in this many, to show how far it is."""

_LOAD_ROWS = 50_000
_WARM_KEYS = 5_000
_SETTLE_S, _AFTER_S, _QUIET_S = 10.0, 3.0, 3.0
"""Seconds of steady load before latencies are looked at; of more load after the first row; and without
a new row, after which all records are served. Chosen."""

_SETTLED_S, _SETTLED_TIMES = 1.0, 5
"""The request comes when this many latencies in turn were below these seconds. Chosen."""

_POLL_S = 0.005
_WAIT_S, _LIMIT_S = 400.0, 1_500.0
"""Time limits, seconds: of one wait, and of one repeat."""


def measure(
    state_bytes: int, slots_from: int, slots_to: int, repeats: int, rate: int = 10_000
) -> dict[str, Any]:
    """Return the time of Flink's change from one parallelism to another.

    Parameters
    ----------
    state_bytes : int
        Size of the state in headgate's layout.
    slots_from, slots_to : int
        Parallelism before and after the change; above 1, since Flink names the state of a job of
        parallelism 1 in another way.
    repeats : int
        Runs, each with its own cluster and state.
    rate : int
        Records per second.

    Returns
    -------
    dict
        Medians of all runs. total_ms: from the request to the first row after it; its parts
        savepoint_ms and restart_ms; submit_ms: part of restart_ms until the cluster has the new job;
        savepoint_bytes; latency_ms of records before the request. Further ``runs``, with the figures of
        each; version; format of the savepoint; state_bytes, entries, entry_bytes; keys_compared: keys
        of the run with the fewest, all of which had the exact count and sum afterwards. Instead
        ``skipped`` with the reason where Flink is not installed, ``failed`` if it fails.

    Raises
    ------
    WrongAnswer
        A count or a sum was wrong afterwards.
    """
    from headgate.core.errors import EngineError  # noqa: PLC0415 -- the script side runs without headgate
    from headgate_lab.bench import flink  # noqa: PLC0415
    from headgate_lab.bench.common import medians, progress  # noqa: PLC0415

    python, version = flink.find_flink()
    if python is None:
        progress(f"flink: skipped, {version}")
        return {"skipped": version}
    keys, runs = max(1, state_bytes // ENTRY_BYTES), []
    request = {"keys": keys, "slots": (slots_from, slots_to), "rows": max(1, int(rate * FILE_S))}
    for index in range(repeats):
        progress(f"Flink: stop with a savepoint, restart from it, {index + 1} of {repeats}")
        try:
            runs.append(_run(python, request))
        except EngineError as error:
            progress(f"flink: FAILED, {error}")
            return {"failed": str(error)}
        progress(f"flink: {runs[-1]['total_ms']} ms, answer right")
    return {name: round(value, 1) for name, value in medians(runs).items()} | {
        "keys_compared": min(run["keys_compared"] for run in runs),
        "runs": runs,
        "version": version,
        "format": "native",
        "state_bytes": keys * ENTRY_BYTES,
        "entries": keys,
        "entry_bytes": ENTRY_BYTES,
    }


def _run(python: str, request: dict[str, Any]) -> dict[str, float]:
    """Run once in Flink's interpreter, check the answer, and return the figures."""
    from headgate_lab.bench import flink  # noqa: PLC0415
    from headgate_lab.bench.common import child  # noqa: PLC0415

    # in memory, as headgate's state and checkpoints are in `rescale`
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="headgate-flink-", dir=memory) as work:
        asked = json.dumps(request | {"directory": work})
        said = child([python, str(Path(__file__).resolve()), asked], flink.clean_env(), _LIMIT_S)
        printed = (Path(work) / "printed").read_text()
    files = said.pop("files")
    return said | {
        "keys_compared": check(last_rows(printed), request["keys"], request["rows"], files)
    }


def last_rows(printed: str) -> dict[int, tuple[int, int]]:
    """Return the last count and sum of every key that the measured jobs have printed.

    Raises
    ------
    WrongAnswer
        A key was inserted twice: the second job has not gone on from the state of the first.
    """
    from headgate_lab.bench.common import WrongAnswer  # noqa: PLC0415

    found = re.findall(r"^main:\d+> \+([IU])\[(\d+), (\d+), (\d+)\]$", printed, re.MULTILINE)
    inserted = [int(k) for kind, k, _, _ in found if kind == "I"]
    if len(inserted) != len(set(inserted)):
        msg = "flink after the savepoint has begun again instead of going on from its state."
        raise WrongAnswer(msg)
    return {int(k): (int(c), int(s)) for _, k, c, s in found}


def check(last: dict[int, tuple[int, int]], keys: int, rows: int, files: int) -> int:
    """Compare the last counts and sums with the exact ones; return the number of keys.

    Parameters
    ----------
    last : dict
        The result of `last_rows`.
    keys, rows, files : int
        Keys loaded; rows per later file, and number of those files.

    Raises
    ------
    WrongAnswer
        A key is missing or extra, or its count or sum differs.
    """
    from headgate_lab.bench.common import Answer  # noqa: PLC0415

    counts = np.ones(keys, np.int64)
    for index in range(files):
        np.add.at(counts, touched(index, rows, keys), 1)
    every = np.arange(keys)
    shown = every[(counts > 1) | (every % SAMPLE == 0)]
    sums = counts * (SUMS * values_of(every) + SUMS * (SUMS - 1) // 2)
    got = np.array([(k, *last[k]) for k in sorted(last)], np.int64).reshape(-1, 3)
    exact = Answer(shown, counts[shown], sums[shown])
    exact.check(Answer(got[:, 0], got[:, 1], got[:, 2]), "flink after the savepoint")
    return len(shown)


def touched(index: int, rows: int, keys: int) -> I64:
    """Return the keys of a later file, by its index; shape [rows]."""
    # a stride spreads them over all slots; another start makes files differ
    found: I64 = (index * 611_953 + 7_919 * np.arange(rows, dtype=np.int64)) % keys
    return found


def values_of(keys: I64) -> I64:
    """Return the value of each key's rows, as `wide.values_of` does."""
    return keys % 1_000


# ---- below: the measurement, run by Flink's interpreter -----------------------------------------


class _Feed:
    """Writes the files that the job reads.

    Attributes
    ----------
    count : int
        Files written by `steady` so far.
    """

    def __init__(self, directory: Path, keys: int, rows: int) -> None:
        self._directory, self._keys, self._rows = directory, keys, rows
        self.count = 0
        directory.mkdir(parents=True)

    def load(self) -> None:
        """Write a row for every key."""
        order = np.random.default_rng(0).permutation(self._keys).astype(np.int64)
        for at in range(0, self._keys, _LOAD_ROWS):
            self._write(f"load-{at:09d}", order[at : at + _LOAD_ROWS])

    def next_key(self) -> int:
        """Return the first key of the next file of `steady`."""
        return int(touched(self.count, self._rows, self._keys)[0])

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Write a file every `FILE_S` seconds, in a thread, while the context is active."""
        ended, started = threading.Event(), time.monotonic()

        def write() -> None:
            # after a pause of the machine, the files that are due are written at once
            while not ended.wait(max(0.0, started + self.count * FILE_S - time.monotonic())):
                self._write(f"touch-{self.count:07d}", touched(self.count, self._rows, self._keys))
                self.count += 1

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _write(self, name: str, keys: I64) -> None:
        # Flink passes over hidden files, so it sees no file before it is complete
        hidden = self._directory / f".{name}"
        values = values_of(keys)
        pairs = zip(keys.tolist(), values.tolist(), strict=True)
        hidden.write_text("".join(f"{k},{v}\n" for k, v in pairs))
        hidden.rename(self._directory / f"{name}.csv")


class _Printed:
    """Reads the lines of the print sink, which writes to the file that is the JVM's stdout."""

    def __init__(self, path: Path) -> None:
        self._path, self._part, self._chars = path, "", 0

    def lines(self) -> list[str]:
        """Return the complete rows since the last call."""
        with self._path.open() as file:
            file.seek(self._chars)
            text = file.read()
        self._chars += len(text)
        *lines, self._part = (self._part + text).split("\n")
        return [line for line in lines if "> " in line]


class _Cluster:
    """Holds a mini-cluster, which outlives the jobs that it runs."""

    def __init__(self, directory: Path, slots: int) -> None:
        self._jvm = importlib.import_module("pyflink.java_gateway").get_gateway().jvm
        self.directory = directory
        configuration = self._jvm.org.apache.flink.configuration.Configuration()
        settings = {
            # as in `flink`: the default of a local cluster, 128 MB, would starve RocksDB
            "taskmanager.memory.managed.size": "1g",
            "rest.port": "0",
            "rest.bind-port": "0",
            "io.tmp.dirs": str(directory / "tmp"),
        }
        for key, value in settings.items():
            configuration.setString(key, value)
        package = self._jvm.org.apache.flink.runtime.minicluster
        builder = package.MiniClusterConfiguration.Builder().setConfiguration(configuration)
        built = builder.setNumTaskManagers(1).setNumSlotsPerTaskManager(slots).build()
        cluster = package.MiniCluster(built)
        cluster.start()
        self._address = cluster.getRestAddress().get()

    def start(self, name: str, files: Path, parallelism: int, savepoint: str | None) -> Any:
        """Start the job, from a savepoint if there is one; return its client."""
        table = importlib.import_module("pyflink.table")
        configuration = importlib.import_module("pyflink.common").Configuration()
        settings = {
            "execution.target": "remote",
            "rest.address": self._address.getHost(),
            "rest.port": str(self._address.getPort()),
            "execution.runtime-mode": "STREAMING",
            "parallelism.default": str(parallelism),
            "pipeline.max-parallelism": "128",
            "restart-strategy.type": "none",
            "table.exec.mini-batch.enabled": "true",
            # 1 s, as in `flink`, would add up to 1 s to the time of a change
            "table.exec.mini-batch.allow-latency": "100 ms",
            "table.exec.mini-batch.size": "50000",
            "state.backend.type": "rocksdb",
            # Flink names RocksDB's log after the whole path of the database. The usual path is so long
            # that the restart fails: a file's name has at most 255 bytes.
            "state.backend.rocksdb.localdir": str(self.directory / "db"),
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.dir": (self.directory / "checkpoints").as_uri(),
        }
        if savepoint is not None:
            settings["execution.state-recovery.path"] = savepoint
        for key, value in settings.items():
            configuration.set_string(key, value)
        made = table.EnvironmentSettings.new_instance().with_configuration(configuration).build()
        environment = table.TableEnvironment.create(made)
        environment.execute_sql(
            "CREATE TABLE rows_ (k BIGINT, v BIGINT) WITH ('connector'='filesystem', 'format'='csv', "
            f"'path'='{files.as_uri()}', 'source.monitor-interval'='20 ms')"
        )
        environment.execute_sql(
            "CREATE TABLE totals_ (k BIGINT, c BIGINT, s BIGINT) WITH "
            f"('connector'='print', 'print-identifier'='{name}')"
        )
        return environment.execute_sql(f"INSERT INTO totals_ {query()}").get_job_client()

    def stop(self, client: Any) -> str:
        """Stop the job with a savepoint in Flink's native format, and return the savepoint's path."""
        kinds = self._jvm.org.apache.flink.core.execution.SavepointFormatType
        to = (self.directory / "savepoints").as_uri()
        # PyFlink's own method has no parameter for the format
        path: str = client._j_job_client.stopWithSavepoint(False, to, kinds.NATIVE).get()
        return path


def query() -> str:
    """Return the SQL of `wide.totals`, with one sum over all sums; reads ``rows_``.

    The result has keys that came more than once, and one loaded key in `SAMPLE`.
    """
    sums = ", ".join(f"SUM(v + {i}) AS s{i}" for i in range(SUMS))
    total = " + ".join(f"s{i}" for i in range(SUMS))
    wide = f"SELECT k, COUNT(*) AS c, {sums} FROM rows_ GROUP BY k"
    return f"SELECT k, c, {total} AS s FROM ({wide}) WHERE c > 1 OR MOD(k, {SAMPLE}) = 0"


def _change(
    cluster: _Cluster, printed: _Printed, request: dict[str, Any], name: str, settle_s: float
) -> dict[str, float]:
    """Load the state, change the parallelism under load, and return the figures."""
    keys, (slots_from, slots_to) = request["keys"], request["slots"]
    files = cluster.directory / f"input-{name}"
    feed = _Feed(files, keys, request["rows"])
    feed.load()
    client, loaded = cluster.start(name, files, slots_from, None), 0
    while loaded < -(-keys // SAMPLE):
        loaded += len(_next_lines(client, printed))
    with feed.steady():
        time.sleep(settle_s)
        latency_s = _settled_latency_s(client, printed, feed)
        asked = time.perf_counter()
        savepoint = cluster.stop(client)
        stopped = time.perf_counter()
        printed.lines()  # rows of the job that has ended
        client = cluster.start(name, files, slots_to, savepoint)
        submitted = time.perf_counter()
        _next_lines(client, printed)
        served = time.perf_counter()
        time.sleep(_AFTER_S)
    quiet_from = time.monotonic()
    while time.monotonic() < quiet_from + _QUIET_S:
        time.sleep(_POLL_S)
        if printed.lines():
            quiet_from = time.monotonic()
    client.cancel().result()
    saved = Path(savepoint.removeprefix("file:"))
    return {
        "total_ms": round((served - asked) * 1e3, 1),
        "savepoint_ms": round((stopped - asked) * 1e3, 1),
        "restart_ms": round((served - stopped) * 1e3, 1),
        "submit_ms": round((submitted - stopped) * 1e3, 1),
        "savepoint_bytes": sum(f.stat().st_size for f in saved.rglob("*") if f.is_file()),
        "latency_ms": round(latency_s * 1e3, 1),
        "files": feed.count,
    }


def _settled_latency_s(client: Any, printed: _Printed, feed: _Feed) -> float:
    """Wait until the job keeps up, and return the median of its latest latencies, in seconds.

    A latency goes from the request for a file, which comes within `FILE_S`, to its first record's row.
    """
    latencies: list[float] = []
    deadline = time.monotonic() + _WAIT_S
    while len(latencies) < _SETTLED_TIMES or max(latencies) >= _SETTLED_S:
        if time.monotonic() > deadline:
            msg = f"Flink's job does not keep up: its last latency is {latencies[-1]:.1f} s"
            raise RuntimeError(msg)
        started, row = time.monotonic(), f"U[{feed.next_key()}, "
        while not any(row in line for line in _next_lines(client, printed)):
            pass
        latencies = [*latencies, time.monotonic() - started][-_SETTLED_TIMES:]
    return statistics.median(latencies)


def _next_lines(client: Any, printed: _Printed) -> list[str]:
    """Wait for the next lines that a job prints, and return them."""
    started = asked = time.monotonic()
    while not (lines := printed.lines()):
        now = time.monotonic()
        if now > asked + 1.0:
            asked, status = now, client.get_job_status().result().name
            if status in ("FAILED", "CANCELED", "FINISHED") or now > started + _WAIT_S:
                msg = f"no row of Flink's job within {now - started:.0f} s; the job is {status}"
                raise RuntimeError(msg)
        time.sleep(_POLL_S)
    return lines


def _main(request: dict[str, Any]) -> dict[str, float]:
    directory = Path(request["directory"])
    cluster = _Cluster(directory, max(request["slots"]))
    printed = _Printed(directory / "printed")
    warm = {"keys": _WARM_KEYS, "slots": request["slots"], "rows": 100}
    _change(cluster, printed, warm, "warm", 2.0)
    return _change(cluster, printed, request, "main", _SETTLE_S)


if __name__ == "__main__":
    # a script's folder is first on the path, and another package might import our `common`
    sys.path.pop(0)
    asked_for = json.loads(sys.argv[1])
    # the JVM gets this process's stdout: first a file, so that the rows of the print sink are there
    stdout = os.dup(1)
    with (Path(asked_for["directory"]) / "printed").open("a") as rows_printed:
        os.dup2(rows_printed.fileno(), 1)
    os.write(stdout, (json.dumps(_main(asked_for)) + "\n").encode())
