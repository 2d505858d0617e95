"""Settings of a generator that cannot be are refused, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.core.errors import ConfigError
from headgate_demo.generators.nexmark import DELAY_MS_MAX, NexmarkConfig, check_columns
from headgate_demo.generators.replay import ReplayConfig, load
from headgate_demo.generators.sentences import SentenceConfig
from headgate_demo.generators.stock_exchange import ExchangeConfig


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
    ],
)
def test_a_generator_that_cannot_be_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert says in str(refused.value)


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    SentenceConfig(words=1, length=1, exponent=0.0)
    ExchangeConfig(stocks=1, accounts=1, exponent=0.0, cancels=0.0, rush_from_s=0.0)
    NexmarkConfig(delay_ms=DELAY_MS_MAX, prob_delayed=1.0, max_events=0)


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
