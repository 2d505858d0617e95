"""State larger than the memory it may have: on a disk in part, and the answer is the same."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError, StateError
from headgate.journal import Batch, MemoryUse, read
from headgate.spark.worker.failure import QueryFailed
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(300)

BOUND = 120_000
"""Bytes; a key group of 64 rows or fewer has 5 kB and as much again that undoes a step."""

GROUPS = 16


@pytest.fixture(autouse=True)
def spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADGATE_SPILL_DIR", str(tmp_path / "spill"))
    return tmp_path / "spill"


def write_files(folder: Path, files: int, keys: int, seed: int = 1) -> Counter[int]:
    """Write batches of skewed keys; return how often each occurs."""
    rng, counts = random.Random(seed), Counter[int]()
    folder.mkdir(exist_ok=True)
    for number in range(files):
        wide = range(number * keys // files, (number + 1) * keys // files)
        drawn = [*wide, *(min(int(rng.paretovariate(0.7)), keys) - 1 for _ in range(keys // files))]
        counts.update(drawn)
        path = folder / f"{seed}-{number}.parquet"
        pq.write_table(pa.table({"k": pa.array(drawn, pa.int64())}), path)
        os.utime(path, (1_000_000_000 + 1000 * seed + number,) * 2)
    return counts


def counted(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(folder))
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("k").alias("s"))


class _Job:
    """The same query, started again and again on one checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.newest: dict[int, tuple[int, int]] = {}

    def run(
        self, *given: Mapping[str, Any], bound: object = BOUND, scales: Iterable[int] = ()
    ) -> Any:
        """Serve what there is, changing slots on the way; return the query."""

        def take(frame: DataFrame, batch: int) -> None:
            del batch
            self.newest.update({row.k: (row.n, row.s) for row in frame.collect()})
            if to := next(wanted, None):
                query.scale(to)

        wanted = iter(scales)
        writer = (
            hg.writeStream(counted(self.spark, self.directory / "in"))
            .slots(start=2, max=4)
            .keyGroups(GROUPS)
            .outputMode("update")
            .foreachBatch(take)
            .option("headgate.state.memoryMax", bound)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
        )
        faults.inject(writer, *given)
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return query

    def check(self, counts: Counter[int]) -> None:
        assert self.newest == {k: (n, n * k) for k, n in counts.items()}


def memory(query: Any) -> list[MemoryUse]:
    return [e.memory for e in read(query.journal) if isinstance(e, Batch) and e.memory]


def test_state_that_has_no_room_in_memory_is_counted_right(
    spark: SparkSession, tmp_path: Path, spill: Path
) -> None:
    counts = write_files(tmp_path / "in", files=2, keys=800)
    job = _Job(spark, tmp_path)
    (first, last) = memory(job.run(bound=50_000, scales=[3]))
    job.check(counts)
    assert first.memory_bytes > 0
    assert last.cold_bytes > last.memory_bytes > 0
    assert last.groups_cold > 0
    assert not any(spill.iterdir()), "nothing is left of a run"


@pytest.mark.thorough
def test_state_of_four_times_the_bound_is_counted_right_over_slots_and_lost_attempts(
    spark: SparkSession, tmp_path: Path, spill: Path
) -> None:
    counts = write_files(tmp_path / "in", files=6, keys=6_000)
    job = _Job(spark, tmp_path)
    lost = [faults.kill_worker(slot=0, step=2), faults.raise_in(slot=0, step=4)]
    query = job.run(*lost, scales=(3, None, 1))
    job.check(counts)
    told = memory(query)
    assert len(told) == 6
    assert all(use.memory_bytes <= 2 * BOUND for use in told), "with what undoes a step"
    assert told[-1].memory_bytes + told[-1].cold_bytes > 4 * BOUND
    assert told[-1].groups_cold > 0
    assert not any(spill.iterdir()), "nothing is left of a run"
    # another bound, or none, at the next start: the checkpoint knows of none
    counts += write_files(tmp_path / "in", files=1, keys=6_000, seed=2)
    query = job.run(bound="1 GB")
    job.check(counts)
    assert memory(query)[-1].cold_bytes == 0


@contextmanager
def small(directory: Path, byte_count: int) -> Iterator[Path]:
    """Have a file system of so many bytes at a directory."""
    directory.mkdir(mode=0o700)
    size = ["-o", f"size={byte_count},mode=0700"]
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *size, "tmpfs", str(directory)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("wants the right to mount a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["SPILL", "ARENA"])
def test_a_file_system_that_is_full_in_the_middle_ends_the_query_and_its_next_start_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    counts = write_files(tmp_path / "in", files=5, keys=8_000)
    job = _Job(spark, tmp_path)
    with small(tmp_path / "small", 450_000) as full, monkeypatch.context() as meanwhile:
        meanwhile.setenv(f"HEADGATE_{what}_DIR", str(full))
        words = rf"the arena {full}/.* has \d+ bytes left .* HEADGATE_{what}_DIR"
        with pytest.raises(QueryFailed, match=words) as raised:
            job.run(bound=BOUND if what == "SPILL" else None)
        assert "\n" not in str(raised.value)
        assert job.newest, "it had begun"
        # what is full now is the bound's to avoid
        if what == "ARENA":
            job.run(bound=200_000)
    job.run()
    job.check(counts)


def test_the_bound_is_explained_and_one_that_is_none_refused(
    spark: SparkSession, tmp_path: Path, spill: Path
) -> None:
    write_files(tmp_path / "in", files=1, keys=10)
    query = counted(spark, tmp_path / "in")
    said = hg.explain(query, "update", memoryMax="500 MB").splitlines()
    (line,) = [line for line in said if line.startswith("memory ")]
    assert "at most 500 MB of each host's for state in " in line
    assert line.endswith(f"lie in {spill}")
    with pytest.raises(ConfigError, match='memoryMax="much" is not allowed; use a number of bytes'):
        hg.explain(query, memoryMax="much")
    with pytest.raises(ConfigError, match=r'did you mean "headgate\.state\.memoryMax"'):
        hg.writeStream(query).option("headgate.state.memorymx", "500 MB")
    spill.write_text("a file")
    writer = hg.writeStream(query).option("headgate.state.memoryMax", "500 MB").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
    with pytest.raises(StateError, match=r"spill for state cannot be used .*HEADGATE_SPILL_DIR"):
        writer.start()
