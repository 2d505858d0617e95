"""What the core reads of people's words, and what cannot be any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.core.call import Call
from headgate.core.duration import LONGEST_S, parse_duration_s
from headgate.core.errors import ConfigError
from headgate.core.input import checked_path, checked_text, read_json
from headgate.core.size import parse_bytes
from headgate.core.slo import parse_slo
from headgate.core.stores import store_option


def call(text: str, *parameters: str) -> Callable[[], object]:
    return lambda: Call.parse(text, "policy", ["drs", "hpa"], "drs(0.1)").values(parameters)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (call("hpaa(1)", "a"), 'unknown policy "hpaa"; did you mean "hpa"'),
        (call("drs(1, 2)", "a"), "drs takes 1 parameters: a"),
        (call("drs(1)"), "drs takes no parameters"),
        (call("drs(1", "a"), 'cannot read the policy "drs(1"; write for example drs(0.1)'),
        (lambda: checked_text("x" * 11, "the reason", 10), "the reason has 11 characters; use 10"),
        (lambda: checked_text("a\0b", "the reason"), "holds a NUL character; leave it out"),
        (lambda: checked_path("a\0b"), "holds a NUL character; name another"),
        (lambda: checked_path("x" * 256), "is longer than a path can be; name another"),
        (lambda: checked_path("/".join(["x" * 200] * 30)), "is longer than a path can be"),
        (lambda: read_json(b'{"a": NaN}', "the line"), "NaN is not a finite number"),
        (lambda: parse_bytes("0.1 B"), 'size "0.1 B" is nothing; use 1 B or more'),
        (lambda: parse_bytes("9999999999 GB"), "is more than a machine has"),
        (lambda: parse_bytes("5"), 'size "5" has no unit; write it as "500 MB"'),
        (lambda: parse_duration_s("0 s"), "is not above zero and finite"),
        (lambda: parse_duration_s("101 years"), "101 years"),
        (lambda: parse_slo("p99 < 0 s over 5 s"), 'SLO "p99 < 0 s over 5 s": duration "0 s"'),
        (lambda: parse_slo("p99 < 1 s over 5"), 'has no unit at "5"; write "p99 < 1 s over 5 s"'),
        (lambda: parse_slo("throughput >= 500"), 'has no rate at "500"; write "throughput >= 500'),
        (
            lambda: store_option("headgate.store.regoin", "x"),
            'unknown option "headgate.store.regoin"; did you mean "headgate.store.region"',
        ),
    ],
)
def test_words_that_mean_nothing_are_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert says in str(refused.value)


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    assert checked_text("x" * 10, "the reason", 10) == "x" * 10
    assert checked_path("x" * 255).name == "x" * 255
    assert parse_bytes("1 B") == 1
    assert parse_duration_s("0 s", zero=True) == 0.0
    assert parse_duration_s(f"{LONGEST_S:.0f} s") == LONGEST_S
