"""A policy of one's own: as an object, by name, and broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import own_policies
import pytest
from control_views import view

import headgate as hg
from headgate import control
from headgate.control import registry
from headgate.control.fleet.registry import fleet_policy
from headgate.control.observation import Observation
from headgate.control.policy import asked, checked
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.scenario.description import Scenario
from headgate.scenario.fleet_file import FleetSettings
from headgate.whatif.simulate import WhatIf, simulate
from headgate.workloads.traces import Trace

VIEW = view([10.0] * 8, slots=2)
FLEET = """
from headgate.control.fleet.view import FleetDecision

class Calm:
    name = "calm"

    def __init__(self, round_s):
        self.round_s = round_s

    def decide(self, view):
        return FleetDecision(rule="calm")
"""


@pytest.fixture
def lag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_policies.install_example(monkeypatch, tmp_path / "site")


def brings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    """Install a distribution `shaky` whose module is `module`, with the policy `wobble`."""
    monkeypatch.delitem(sys.modules, "shaky", raising=False)
    own_policies.install(
        monkeypatch, tmp_path / "shaky", "shaky", {"wobble": "shaky:Wobble"}, module=module
    )


# --- by name -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lag")
def test_an_installed_policy_is_found_by_name_with_its_parameters() -> None:
    assert registry.policy("lag").name == "lag(2)"
    assert registry.policy("lag(0.5)").name == "lag(0.5)"
    assert registry.policy(" lag( behind_s = 3 )").name == "lag(3)"
    assert Scenario("nexmark-q5", slo=("mean < 1 s over 1 s",), policy="lag(3)").policy == "lag(3)"


@pytest.mark.usefixtures("lag")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lagg", r'unknown policy "lagg"; did you mean "lag"\?'),
        ("streamswich", r'unknown policy "streamswich"; did you mean "streamswitch"\?'),
        ("x", 'unknown policy "x"; known: static, streamswitch, threshold, unified, .*lag'),
        ("lag(1, 2)", "lag takes 1 parameters: behind_s"),
        ("lag(behind=1)", r'lag has no parameter "behind"; did you mean "behind_s"\?'),
        ("lag(soon)", "lag: behind_s=soon is not a number"),
        ("lag(0)", "lag: behind_s=0 is out of range; use more than 0"),
    ],
)
def test_a_mistake_with_an_installed_policy_is_refused_as_with_headgates_own(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.policy(text)


def test_without_the_distribution_the_name_is_unknown() -> None:
    with pytest.raises(ConfigError, match='unknown policy "lag"; known: static, streamswitch'):
        registry.policy("lag")


def test_a_name_that_headgate_has_is_headgates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own_policies.install(monkeypatch, tmp_path, "usurper", {"static": "usurper:Missing"})
    assert registry.policy("static(3)").name == "static(3)"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nothing_like_it", r"cannot be loaded: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("", "cannot be loaded: AttributeError"),
        ("Wobble = 7", "is no class and no function but 7"),
        ("def Wobble():\n    raise ValueError('no luck')", "cannot be made: ValueError: no luck"),
        ("def Wobble(depth):\n    pass", "cannot be made: TypeError: .*depth"),
        ("def Wobble():\n    return 7", "of type int, has no method decide; derive int from"),
        ("class Wobble:\n    name = 'w'\n    def decide(self, o): ...", "has no method applied"),
        (
            "class Wobble:\n    pass\ndef Wobble(k=Wobble):\n    return k",
            "is the class Wobble; give",
        ),
    ],
)
def test_a_distribution_that_does_not_work_is_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, message: str
) -> None:
    brings(monkeypatch, tmp_path, module)
    with pytest.raises(ConfigError, match=message) as raised:
        registry.policy("wobble")
    said = str(raised.value)
    assert said.startswith('policy "wobble" of the distribution shaky 0.1.0')
    assert "\n" not in said
    assert registry.policy("static").name == "static"  # and the others do not mind


def test_a_name_in_two_distributions_is_refused_with_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        own_policies.install(monkeypatch, tmp_path / name, name, {"wobble": f"{name}:Wobble"})
    with pytest.raises(ConfigError, match=r"in the distributions .*(one|two) 0.1.0 and (one|two) "):
        registry.policy("wobble")


def test_a_fleets_policy_is_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = "headgate.fleet_policies"
    entries = {"calm": "calmfleet:Calm", "gone": "calmfleet:Gone", "bare": "builtins:dict"}
    own_policies.install(monkeypatch, tmp_path, "calmfleet", entries, group=group, module=FLEET)
    assert FleetSettings(policy="calm").policy == "calm"
    made = fleet_policy("calm", 3.0)
    assert (made.name, made.round_s) == ("calm", 3.0)  # type: ignore[attr-defined]
    for name, message in {
        "clam": r'unknown fleet policy "clam"; did you mean "calm"\?',
        "gone": 'policy "gone" of the distribution calmfleet 0.1.0 cannot be loaded',
    }.items():
        with pytest.raises(ConfigError, match=message):
            FleetSettings(policy=name)
    with pytest.raises(ConfigError, match='the fleet policy calm has no goal "max-min"'):
        FleetSettings(policy="calm", goal="max-min")
    with pytest.raises(ConfigError, match=r"calmfleet 0\.1\.0 has no method decide"):
        fleet_policy("bare", 3.0)


# --- as an object --------------------------------------------------------------------------------


class Once(hg.Policy):
    """The least that a policy may be."""

    def decide(self, observation: Observation) -> control.Decision:
        """Return two slots more for each operator."""
        wanted = {name: one.slots + 2 for name, one in observation.operators.items()}
        return control.scaled(observation, wanted, "more", numbers={"more": 2.0})


def test_a_policy_needs_no_more_than_its_decision() -> None:
    policy = checked(Once(), "the policy")
    assert policy.name == "once"
    policy.slot_failed("a", 0)
    decision = asked(policy, Observation(1.0, {"a": VIEW, "b": VIEW}))
    assert {name: change.assignment.slots for name, change in decision.changes.items()} == {
        "a": 4,
        "b": 4,
    }
    assert (decision.reason, decision.rule, decision.numbers) == ("more", "scale", {"more": 2.0})


def test_a_policy_that_leaves_all_slots_alone_decides_nothing() -> None:
    observation = Observation(1.0, {"a": VIEW})
    assert control.scaled(observation, {"a": VIEW.slots}, "as it is") is control.NOTHING


def test_a_policy_without_a_decision_cannot_be_made() -> None:
    class Undecided(hg.Policy):
        """Nothing."""

    with pytest.raises(TypeError, match="decide"):
        Undecided()  # type: ignore[abstract]


def test_a_policy_that_returns_no_decision_is_told_what_to_return() -> None:
    class Silent(Once):
        def decide(self, observation):  # type: ignore[no-untyped-def]
            return None

    with pytest.raises(ConfigError, match="the policy silent returned None; decide must return"):
        asked(Silent(), Observation(1.0, {}))


def test_the_policy_of_the_guide_does_what_its_page_says() -> None:
    page = (own_policies.EXAMPLE.parents[1] / "docs" / "own-policy.md").read_text(encoding="utf-8")
    block = re.search(r"runs this block -->\n```python\n(.*?)```", page, re.DOTALL)
    assert block
    names: dict[str, Any] = {}
    exec(block[1], names)
    policy = checked(names["TwoForTwo"](), "the policy")
    waits = Observation(1.0, {"idle": VIEW, "late": view([10.0] * 8, slots=2, backlog=50.0)})
    decision = asked(policy, waits)
    assert [(n, c.assignment.slots) for n, c in decision.changes.items()] == [("late", 4)]
    assert decision.reason == "work waits at late"
    assert asked(policy, Observation(2.0, {"idle": VIEW})) is control.NOTHING


# --- the example, on the simulator ---------------------------------------------------------------


def a_burst() -> Trace:
    """Return 60 s of 100 records per second, in whose middle 20 s bring 400 per second."""
    per_slice = np.full((60, 16), 100 / 16)
    per_slice[20:40] *= 4
    return Trace(np.round(per_slice).astype(np.int64), 1.0)


@pytest.mark.usefixtures("lag")
def test_the_example_follows_a_burst_on_the_simulator() -> None:
    what_if = WhatIf(a_burst(), parse_slo("mean < 2 s over 2 s"), 100.0, slots_max=8)
    found = simulate(what_if, ["lag(1)", "static"])
    follows, stays = found["rows"]
    assert follows["policy"] == "lag(1)"
    assert follows["slots_most"] > stays["slots_most"]
    assert follows["rescale"] >= 2
    assert follows["success"] > stays["success"]


@pytest.mark.slow
def test_the_example_is_found_where_pip_installed_it(tmp_path: Path) -> None:
    source, target = tmp_path / "lagpolicy", tmp_path / "site"
    shutil.copytree(own_policies.EXAMPLE, source)  # pip builds in it
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    local = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *local, "--target", str(target), str(source)], check=True)
    code = "from headgate.control import registry; print(registry.policy('lag(0.5)').name)"
    path = os.pathsep.join([str(target), *filter(None, sys.path)])
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert said == "lag(0.5)\n"
