"""Policies by name."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from control_views import seen, view

from headgate.control import registry
from headgate.control.registry import names, policy
from headgate.core.errors import ConfigError


def test_the_names_of_all_policies_are_known() -> None:
    expected = (
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
        (" streamswitch( epsilon = 0.4 ) ", "streamswitch(0.4)"),
        ("threshold(high=0.8, target=0.75, low=0.7)", "threshold(0.8, 0.75, 0.7)"),
        ("static()", "static"),
        ("static(8, cooldown_s=30)", "static(8, cooldown_s=30)"),
        ("static(8, cooldown_s=0.5, hysteresis=3)", "static(8, hysteresis=3, cooldown_s=0.5)"),
        (
            "unified( per_minute = 6 , epsilon=0.2, hysteresis=1)",
            policy("unified(0.2)").name[:-1] + ", hysteresis=1, per_minute=6)",
        ),
    ],
)
def test_a_text_gives_the_policy_it_names(text: str, name: str) -> None:
    assert policy(text).name == name


@pytest.mark.parametrize("limits", ["", "(hysteresis=2, cooldown_s=30, per_minute=6)"])
@pytest.mark.parametrize("name", names())
def test_the_name_of_a_policy_makes_the_same_policy_again(name: str, limits: str) -> None:
    made = policy(name + limits)
    assert policy(made.name).name == made.name


def test_limits_in_a_text_are_put_around_the_policy() -> None:
    four = view([10.0] * 8, slots=4)
    made = policy("static(8, hysteresis=2, cooldown_s=30, per_minute=1)")
    assert "Held back by hysteresis" in made.decide(seen(0.0, a=four)).reason
    first = made.decide(seen(1.0, a=four)).changes["a"]
    made.applied("a", first, 0.0)
    made.decide(seen(2.0, a=view([10.0] * 8, assignment=first.assignment)))
    # by hand: four slots again
    made.decide(seen(3.0, a=four))
    assert "Held back by cool-down" in made.decide(seen(4.0, a=four)).reason
    made.decide(seen(31.5, a=four))
    assert "Held back by action limit" in made.decide(seen(32.0, a=four)).reason
    made.decide(seen(61.5, a=four))
    assert made.decide(seen(62.0, a=four))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streamswich", r'unknown policy "streamswich"; did you mean "streamswitch"\?'),
        ("x", 'unknown policy "x"; known: static, streamswitch, threshold, unified'),
        (
            "streamswitch(epsilom=0.4)",
            r'streamswitch has no parameter "epsilom"; did you mean "epsilon"\?',
        ),
        ("static(8, 9)", "static takes 1 parameters: n"),
        ("static(8.5)", "static: n=8.5 is not a whole number"),
        ("streamswitch(much)", "streamswitch: epsilon=much is not a number"),
        ("streamswitch(0.1, epsilon=0.2)", "streamswitch: epsilon is given twice"),
        ("streamswitch(", r'cannot read the policy "streamswitch\("'),
        ("static(0)", "static: n=0 is out of range; use at least 1"),
        ("streamswitch(nan)", "streamswitch: epsilon=nan is out of range"),
        ("static(8, 9, hysteresis=2)", "static takes 1 parameters: n"),
        (
            "streamswitch(colddown_s=1)",
            r'streamswitch has no parameter "colddown_s"; did you mean "cooldown_s"\?',
        ),
        ("static(x=1)", "it takes n, hysteresis, cooldown_s, per_minute"),
        ("streamswitch(hysteresis=1.5)", "streamswitch: hysteresis=1.5 is not a whole number"),
        (
            "streamswitch(cooldown_s=0)",
            "cool-down: cooldown_s=0.0 is out of range; use more than 0",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_to_write_instead(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(text)


def parameters_of_policies() -> list[tuple[str, str]]:
    """Return policy and parameter, of all that a text can give."""
    found = []
    for table in (registry._POLICIES, registry._REPLICA_POLICIES):
        for name, make in table.items():
            limits = registry.LIMITS if table is registry._POLICIES else ()
            found += [(name, p) for p in (*inspect.signature(make).parameters, *limits)]
    return found


@pytest.mark.parametrize(("name", "parameter"), parameters_of_policies())
@pytest.mark.parametrize("value", ["-1", "-0.5", "nan", "1e300"])
def test_no_parameter_of_any_policy_may_be_negative_or_without_end(
    name: str, parameter: str, value: str
) -> None:
    make = policy if name in registry._POLICIES else registry.replica_policy
    others = "slots=2, " if name == "static" and parameter != "slots" else ""
    with pytest.raises(ConfigError) as refused:
        make(f"{name}({others}{parameter}={value})")
    assert parameter in str(refused.value)


def test_a_season_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="season=1000000000000 is out of range"):
        registry.replica_policy("psps(season=1000000000000)")


def test_policies_over_pools_of_replicas_have_names_of_their_own() -> None:
    assert registry.replica_policy("psps").name == "psps(naive)"
    assert "holt-winters(288)" in registry.replica_policy("psps(season=288)").name
    assert registry.replica_policy("psps(blend=1)").name.startswith("psps(blend(naive")
    assert registry.replica_policy("unified-pools(0.5)").name == "unified-pools(0.5)"
    assert registry.is_replica_policy(" psps (blend=1)")
    assert not registry.is_replica_policy("streamswitch")


def test_an_unknown_policy_over_pools_is_refused() -> None:
    with pytest.raises(ConfigError, match="bands"):
        registry.replica_policy("unified-pools(bands=1)")
    with pytest.raises(ConfigError, match="it takes blend, season"):
        registry.replica_policy("psps(per_minute=1)")


def test_a_policy_over_pools_of_ones_own_is_the_one_that_its_package_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def mine(replicas: int = 3) -> Any:
        made.append(replicas)
        return SimpleNamespace(name=f"mine({replicas})")

    plugin = SimpleNamespace(load=lambda: mine, blamed=lambda _: nullcontext())
    monkeypatch.setattr(registry, "installed", lambda _: {"mine": plugin})
    assert registry.replica_policy("mine(replicas=4)").name == "mine(4)"
    assert made == [4]
