"""Names with parameters, as policies and strategies are written."""

from __future__ import annotations

import pytest

from headgate.core.call import Call
from headgate.core.errors import ConfigError

KNOWN = ("static", "threshold")


def call(text: str) -> Call:
    return Call.parse(text, "policy", KNOWN, "static(8)")


def test_parameters_are_given_by_place_or_by_name() -> None:
    assert call("static").values(["n"]) == {}
    assert call(" static ( 8 ) ").values(["n"]) == {"n": "8"}
    assert call("threshold(0.9, low=0.4)").values(["high", "target", "low"]) == {
        "high": "0.9",
        "low": "0.4",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("static(8", r'cannot read the policy "static\(8"; write for example static\(8\)'),
        ("statik(8)", 'unknown policy "statik"; did you mean "static"'),
        ("static(8, 9)", "static takes 1 parameters: n"),
        ("static(m=9)", 'static has no parameter "m"'),
        ("static(8, n=9)", "n is given twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call(text).values(["n"])
