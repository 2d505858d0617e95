"""A log keeps its order and its disorder, at any speed."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import ConfigError
from headgate_demo.generators.replay import ReplayConfig, load

LOG = "t_s,path_id,kind\n0,1,a\n5,2,b\n4,3,a\n5.5,4,b\n9,5,a\n"
SDSC = Path(__file__).resolve().parents[4] / "shared" / "data" / "sdsc_http_1995.requests.csv.gz"


def _write(folder: Path, text: str = LOG, name: str = "log.csv") -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def _times_s(batch: pa.RecordBatch, name: str) -> list[float]:
    return (batch[name].cast(pa.int64()).to_numpy() / 1e6).tolist()


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_keeps_the_order_of_the_file_and_an_older_event_time(tmp_path: Path, name: str) -> None:
    log = load(ReplayConfig(_write(tmp_path, name=name)))
    batch = log.batch(0, 5, 100_000_000)
    assert batch["path_id"].to_pylist() == [1, 2, 3, 4, 5]
    assert batch.schema == log.schema
    assert _times_s(batch, "ts") == [100, 105, 104, 105.5, 109]
    # The row that is late in the log arrives with the one in front of it.
    assert _times_s(batch, "scheduled") == [100, 105, 105, 105.5, 109]


def test_speed_moves_arrivals_together_and_leaves_event_time(tmp_path: Path) -> None:
    batch = load(ReplayConfig(_write(tmp_path), speed=10.0)).batch(0, 5, 0)
    assert _times_s(batch, "ts") == [0, 5, 4, 5.5, 9]
    assert _times_s(batch, "scheduled") == [0, 0.5, 0.5, 0.55, 0.9]


def test_repetitions_follow_one_another(tmp_path: Path) -> None:
    log = load(ReplayConfig(_write(tmp_path), speed=10.0, repeat=3))
    assert log.total == 15
    batch = log.batch(0, 15, 0)
    assert batch["path_id"].to_pylist() == [1, 2, 3, 4, 5] * 3
    assert _times_s(batch, "ts")[5:10] == [10, 15, 14, 15.5, 19]
    assert _times_s(batch, "scheduled")[5:10] == [1, 1.5, 1.5, 1.55, 1.9]
    assert _times_s(
        load(ReplayConfig(_write(tmp_path), repeat=2, span_s=60.0)).batch(5, 6, 0), "ts"
    ) == [60]


@pytest.mark.parametrize("speed", [1.0, 7.0, 1e9])
def test_as_many_rows_are_due_as_are_scheduled(tmp_path: Path, speed: float) -> None:
    log = load(ReplayConfig(_write(tmp_path), speed=speed, repeat=3))
    scheduled_us = log.batch(0, log.total, 0)["scheduled"].cast(pa.int64()).to_numpy()
    assert (np.diff(scheduled_us) >= 0).all()
    for elapsed_us in {-1, 0, *scheduled_us.tolist(), *(scheduled_us - 1).tolist(), 10**12}:
        assert log.due(elapsed_us) == (scheduled_us <= elapsed_us).sum()


def test_any_slicing_gives_the_same_rows(tmp_path: Path) -> None:
    log = load(ReplayConfig(_write(tmp_path), repeat=4))
    parts = [log.batch(a, b, 77) for a, b in [(0, 3), (3, 3), (3, 11), (11, 20)]]
    assert pa.Table.from_batches(parts).to_pylist() == log.batch(0, 20, 77).to_pylist()


def test_reads_a_file_again_that_was_replaced(tmp_path: Path) -> None:
    config = ReplayConfig(_write(tmp_path))
    assert load(config).total == 5
    path = Path(_write(tmp_path, "t_s,path_id\n0,1\n"))
    os.utime(path, ns=(1, 1))
    assert load(config).total == 1


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (LOG, {"time_column": "t"}, "no time column"),
        ("time_s,a\n1,2\n", {}, 'did you mean "time_s"'),
        (LOG, {"time_column": "kind"}, "type string"),
        ("t_s,a\n1,2\n,3\n", {}, "has a gap"),
        ("t_s,a\n-1,2\n", {}, "zero or above"),
        ("t_s,ts\n1,2\n", {}, "rename"),
        ("t_s,a\n", {}, "no rows"),
        ("", {}, "repair"),
        (LOG, {"span_s": 9.0}, "give more"),
        (LOG, {"speed": 0.0}, "speed"),
        (LOG, {"repeat": 0}, "repeat"),
    ],
)
def test_refuses_with_the_remedy(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(ReplayConfig(_write(tmp_path, text), **options))  # type: ignore[arg-type]


def test_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(ReplayConfig(str(tmp_path / "none.csv")))


@pytest.mark.skipif(not SDSC.exists(), reason=f"the SDSC log is not at {SDSC}")
def test_the_disorder_of_the_sdsc_log_survives() -> None:
    log = load(ReplayConfig(str(SDSC), speed=600.0))
    assert log.total == 28_338
    assert (np.diff(log.offset_us) < 0).sum() == 3
    assert log.due(144 * 10**6) == 28_338
