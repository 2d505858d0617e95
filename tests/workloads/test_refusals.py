"""What a workload is told and cannot be, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads import traces
from headgate.workloads.arrivals import RecordedArrivals
from headgate.workloads.nexmark import DELAY_MS_MAX, NexmarkConfig, check_columns
from headgate.workloads.rates import parse_rate
from headgate.workloads.replay import ReplayConfig, load
from headgate.workloads.sentences import SentenceConfig
from headgate.workloads.stock_exchange import ExchangeConfig

THREE = np.zeros(3)


def trace(path: Path, text: str, **columns: str) -> Callable[[], object]:
    path.write_text(text)
    return lambda: traces.read_keyed(str(path), 4, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: SentenceConfig(words=0), "words of sentences is 0; give 1 or more"),
        (lambda: SentenceConfig(length=0), "length of sentences is 0"),
        (lambda: SentenceConfig(exponent=-0.5), "exponent of sentences is -0.5; give 0 or more"),
        (lambda: SentenceConfig(exponent=float("nan")), "exponent of sentences is nan"),
        (lambda: ExchangeConfig(stocks=0), "stocks of stock_exchange is 0; give 1 or more"),
        (lambda: ExchangeConfig(rush_from_s=-1.0), "rush_from_s of stock_exchange is -1.0"),
        (lambda: ExchangeConfig(cancels=1.0), "cancels of stock_exchange is 1.0"),
        (lambda: NexmarkConfig(delay_ms=DELAY_MS_MAX + 1), f"give {DELAY_MS_MAX} at most"),
        (lambda: NexmarkConfig(prob_delayed=1.5), "prob_delayed of nexmark is 1.5"),
        (lambda: NexmarkConfig(max_events=-1), "max_events of nexmark is -1"),
        (lambda: check_columns([]), "columns of nexmark is empty; choose among"),
        (lambda: check_columns(["bidd"]), 'nexmark has no column "bidd"; did you mean "bid"'),
        (lambda: parse_rate("sinus"), 'rate "sinus" is neither a number nor a shape such as sine('),
        (
            lambda: parse_rate("sine(base=1)"),
            "lacks amplitude of sine; give every argument by name",
        ),
        (
            lambda: parse_rate("sine(base=1, base=2, amplitude=1)"),
            'gives "base" twice; give it once',
        ),
        (
            lambda: parse_rate("sine(base=1, amplitude=1, period=3 parsec)"),
            'period of rate "sine(base=1, amplitude=1, period=3 parsec)" is unreadable: ',
        ),
        (lambda: parse_rate("sine(bas=1)"), 'unknown argument "bas" of sine; did you mean "base"'),
        (
            lambda: RecordedArrivals(THREE, np.zeros(2, np.int64), THREE, 4),
            "3 arrivals have 2 key groups and 3 costs",
        ),
    ],
)
def test_a_workload_that_cannot_be_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert says in str(refused.value)


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    SentenceConfig(words=1, length=1, exponent=0.0)
    ExchangeConfig(stocks=1, accounts=1, exponent=0.0, cancels=0.0, rush_from_s=0.0)
    NexmarkConfig(delay_ms=DELAY_MS_MAX, prob_delayed=1.0, max_events=0)
    RecordedArrivals(THREE, np.zeros(3, np.int64), THREE, 4)


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        ("time,key,key\n1,a,b\n", {}, 'has several columns "key"; name each differently'),
        ("time,key\nx,a\n", {}, '"time" of "log.csv" has type string; give seconds as numbers'),
        ("time,key\n1,a\n-2,b\n", {}, "has -2 in row 2; give numbers from 0 to"),
        ("time,key\n2026-01-01 00:00:00,a\n,b\n", {}, "has rows without a date; fill them"),
        ("time,key\n1,a\n", {"key_column": "kei"}, 'has no column "kei"; did you mean "key"'),
        ("time,key,n\n1,a,2\n2,b,1.5\n", {"count_column": "n"}, "has 1.5 in row 2; give whole"),
    ],
)
def test_a_log_that_is_no_trace_is_refused_by_column_and_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    columns: dict[str, str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        trace(Path("log.csv"), text, **columns)()
    assert says in str(refused.value)


def test_a_log_to_replay_that_is_no_csv_or_longer_than_told_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,key\n0,a\n7,b\n")
    with pytest.raises(
        ConfigError, match="span_s of replay is 7, but the log lasts 7 s; give more"
    ):
        load(ReplayConfig(path=str(log), time_column="time", span_s=7.0))
    assert load(ReplayConfig(path=str(log), time_column="time", span_s=7.5)).span_us == 7_500_000
    assert load(ReplayConfig(path=str(log), time_column="time")).span_us == 8_000_000
    broken = tmp_path / "broken.csv"
    broken.write_text("time,key\n0,a,3\n")
    with pytest.raises(ConfigError, match=r"as CSV with a header .*; repair the file"):
        load(ReplayConfig(path=str(broken)))
