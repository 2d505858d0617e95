"""Policies by name."""

from __future__ import annotations

import pytest

from headgate.control import registry
from headgate.control.registry import names, policy
from headgate.core.errors import ConfigError


def test_the_names_of_all_policies_are_known() -> None:
    expected = (
        "dhalion",
        "drs",
        "drs-lb",
        "ds2",
        "predictive",
        "static",
        "streamswitch",
        "threshold",
        "unified",
    )
    assert names() == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("streamswitch", "streamswitch(0.2)"),
        ("streamswitch(0.3)", "streamswitch(0.3)"),
        ("static(8)", "static(8)"),
        ("static", "static"),
        (" drs-lb( epsilon = 0.4 ) ", "drs-lb(0.4)"),
        ("drs(0.4, interval_s=1)", "drs(0.4)"),
        ("threshold(high=0.8, target=0.75, low=0.7)", "threshold(0.8, 0.75, 0.7)"),
        ("ds2()", "ds2"),
    ],
)
def test_a_text_gives_the_policy_it_names(text: str, name: str) -> None:
    assert policy(text).name == name


@pytest.mark.parametrize("name", names())
def test_the_name_of_a_policy_makes_the_same_policy_again(name: str) -> None:
    made = policy(name)
    assert policy(made.name).name == made.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streamswich", r'unknown policy "streamswich"; did you mean "streamswitch"\?'),
        ("x", 'unknown policy "x"; known: dhalion, drs, '),
        ("drs(epsilom=0.4)", r'drs has no parameter "epsilom"; did you mean "epsilon"\?'),
        ("static(8, 9)", "static takes 1 parameters: n"),
        ("static(8.5)", "static: n=8.5 is not a whole number"),
        ("drs(much)", "drs: epsilon=much is not a number"),
        ("drs(0.1, epsilon=0.2)", "drs: epsilon is given twice"),
        ("drs(", r'cannot read the policy "drs\("'),
        ("static(0)", "static: n=0 is out of range; use at least 1"),
        ("drs(nan)", "drs: epsilon=nan is out of range"),
    ],
)
def test_a_mistake_is_refused_with_what_to_write_instead(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(text)


def test_policies_over_pools_of_replicas_have_names_of_their_own() -> None:
    assert registry.replica_policy("psps").name == "psps(naive)"
    assert "holt-winters(288)" in registry.replica_policy("psps(season=288)").name
    assert registry.replica_policy("psps(blend=1)").name.startswith("psps(blend(naive")
    assert registry.replica_policy("dabs(0.9, 0.1)").name == "dabs(0.9, 0.1)"
    assert registry.replica_policy("unified-pools(0.5)").name == "unified-pools(0.5)"
    assert registry.is_replica_policy(" psps (blend=1)")
    assert not registry.is_replica_policy("streamswitch")


def test_an_unknown_policy_over_pools_is_refused() -> None:
    with pytest.raises(ConfigError, match="bands"):
        registry.replica_policy("dabs(bands=1)")
