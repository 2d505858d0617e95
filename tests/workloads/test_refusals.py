"""What a workload is told and cannot be, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads.arrivals import RecordedArrivals
from headgate.workloads.rates import parse_rate
from headgate_lab.workloads import arrivals

THREE = np.zeros(3)


def trace(path: Path, text: str, **columns: str) -> Callable[[], object]:
    path.write_text(text)
    return lambda: arrivals.read_keyed(str(path), 4, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "says"),
    [
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
