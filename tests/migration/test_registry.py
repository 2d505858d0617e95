from __future__ import annotations

import pytest

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError
from headgate.migration.plan import Plan
from headgate.migration.registry import default, names, strategy
from headgate.migration.strategies.subscale import Subscales


def test_every_strategy_can_be_had_by_its_name() -> None:
    assert names() == (
        "all-at-once",
        "fluid",
        "on-demand",
        "shared",
        "stop-restart",
        "subscale",
    )
    assert [str(strategy(name)) for name in names()] == list(names())


def test_parameters_are_read_and_written_alike() -> None:
    text = "subscale(decoupling=false, per_host=3)"
    assert strategy(text) == Subscales(decoupling=False, per_host=3)
    assert str(strategy(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("subscales", 'unknown strategy "subscales"; did you mean "subscale"?'),
        ("teleport", "known: all-at-once, fluid"),
        ("subscale(per_hots=2)", 'no parameter "per_hots"; did you mean "per_host"?'),
        ("fluid(x=1)", "it takes none"),
        ("subscale(decoupling=1)", "decoupling=1 is no switch"),
        ("subscale(deferred=many)", "deferred=many is no whole number"),
        ("subscale(deferred=0)", "deferred=0 is out of range; use 1 or more"),
        ("subscale(early_route=true, decoupling=false)", "needs decoupling=true"),
        ("subscale(", "cannot read the strategy"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strategy(text)
    assert message in str(caught.value)


def test_the_default_is_shared_within_a_host_and_subscale_across() -> None:
    old, new = Assignment((0, 0), 1), Assignment((0, 1), 2)
    assert str(default(Plan(old, new, ("a", "a")))) == "shared"
    assert str(default(Plan(old, new, ("a", "b")))) == "subscale"
