"""Traces count what a log holds; the stock exchange has the counts of the paper."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads.traces import Trace, groups_of_keys, read_rows, read_totals
from headgate_demo.generators.draws import zipf_shares
from headgate_lab.workloads.arrivals import group_shares, read_keyed

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Where public logs may lie, beside the repository; tests that need one are skipped without it."""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_log_with_counts_becomes_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "time,key,count\n0.2,a,3\n2.9,b,4\n0.7,a,1\n2.0,a,2\n")
    trace = read_keyed(path, 64, count_column="count")
    a, b = groups_of_keys([0, 1], 64).tolist()
    assert trace.counts.shape == (3, 64)
    assert trace.counts[:, a].tolist() == [4, 0, 2]
    assert trace.counts[:, b].tolist() == [0, 0, 4]
    assert trace.total == 10
    assert trace.duration_s == 3.0


def test_a_log_plays_faster(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "t,page\n0,1\n10,1\n59,2\n")
    trace = read_keyed(path, 4, time_column="t", key_column="page", slice_s=10.0, speed=20.0)
    assert trace.slice_s == 0.5
    assert trace.counts.sum(axis=1).tolist() == [1, 1, 0, 0, 0, 1]


def test_totals_are_spread_by_share(tmp_path: Path) -> None:
    path = tmp_path / "totals.csv.gz"
    path.write_bytes(gzip.compress(b"minute,requests\n0,1000\n1,0\n2,3000\n"))
    generator = np.random.default_rng(0)
    trace = read_totals(str(path), "requests", [0.25, 0.75], generator, speed=60.0)
    assert trace.counts.sum(axis=1).tolist() == [1000, 0, 3000]
    assert trace.counts[:, 1].sum() / 4000 == pytest.approx(0.75, abs=0.03)
    assert trace.slice_s == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,key\n", "no rows"),
        ("time,kee\n0,a\n", 'no column "key"; did you mean "kee"'),
        ("time,key\n0,a\n-1,b\n", 'column "time" of .* has -1 in row 2'),
        ("time,key\nsoon,a\n", "has type string; give seconds as numbers, or dates"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_keyed(write(tmp_path / "log.csv", text), 4)


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keyed(str(tmp_path / "none.csv"), 4)


def test_a_slice_has_a_length() -> None:
    with pytest.raises(ConfigError, match="slice_s of a trace is 0"):
        Trace(np.zeros((1, 1), dtype=int), 0.0)


def test_keys_spread_evenly_over_key_groups() -> None:
    counts = np.bincount(groups_of_keys(np.arange(64_000), 64), minlength=64)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_shares_of_groups_add_up_those_of_their_keys() -> None:
    shares = zipf_shares(100, 1.0)
    groups = groups_of_keys(np.arange(100), 8)
    assert group_shares(shares, 8)[3] == pytest.approx(shares[groups == 3].sum())
    assert shares[0] == pytest.approx(2 * shares[1])


# Public logs, where they are there.


@pytest.mark.skipif(
    not (DATA / "worldcup98.per_minute.csv.gz").exists(), reason=f"no World Cup log in {DATA}"
)
def test_the_world_cup_log_is_read() -> None:
    path = str(DATA / "worldcup98.per_minute.csv.gz")
    trace = read_totals(path, "requests", [0.5, 0.5], np.random.default_rng(0), speed=60.0)
    assert trace.counts.shape == (125_300, 2)
    assert trace.counts.sum(axis=1).max() == 229_426


@pytest.mark.skipif(
    not (DATA / "sdsc_http_1995.requests.csv.gz").exists(), reason=f"no SDSC log in {DATA}"
)
def test_the_sdsc_log_is_read() -> None:
    path = str(DATA / "sdsc_http_1995.requests.csv.gz")
    trace = read_keyed(path, 64, time_column="t_s", key_column="path_id")
    assert trace.total == 28_338


def test_types_hold_for_the_whole_file_not_for_its_first_rows(tmp_path: Path) -> None:
    """Arrow guesses types by the first megabyte: times in whole seconds, keys that are numbers."""
    rows = "".join(f"{i // 100},{i % 50},1,\n" for i in range(150_000))
    path = write(tmp_path / "log.csv", f"time,key,count,note\n{rows}1500.5,k,1.0,E42\n")
    assert (tmp_path / "log.csv").stat().st_size > 1 << 20
    trace = read_keyed(path, 64, count_column="count")
    assert trace.total == 150_001
    assert trace.duration_s == 1501.0


def test_parts_of_a_record_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,key,count\n0,a,2\n1,a,2.5\n")
    with pytest.raises(ConfigError, match=r"has 2\.5 in row 2; give whole numbers of records"):
        read_rows(str(path), key_groups=4, count_column="count")
