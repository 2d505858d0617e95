"""The ends of what a scenario may say, and what its record and an inspection keep of it."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import runs

import headgate as hg
from headgate.core.duration import LONGEST_S
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import KEY_GROUPS_MAX, RATE_MAX
from headgate.core.installed import WORKLOADS, installed
from headgate.report.finish import inspection_lines
from headgate.scenario import Scenario, recorded
from headgate.scenario import run as scenario_run
from headgate.scenario import spark as spark_side
from headgate.scenario.description import DEMO
from headgate.scenario.fleet_file import JobSettings, read_fleet
from headgate.scenario.places import absolute
from headgate.scenario.spark import SparkEngine

ENDS = [
    ("rate", 1e-6, RATE_MAX),
    ("speed", 1e-6, 1e6),
    ("duration_s", 1e-6, LONGEST_S),
    ("slot_rate", 1e-6, RATE_MAX),
    ("key_groups", 1, KEY_GROUPS_MAX),
    ("seed", 0, 10**9),
    ("slots", 1, 128),
    ("slots_max", 1, 128),
]
"""Each number of a scenario, the least and the most that it may be."""


@pytest.mark.parametrize(("name", "least", "most"), ENDS)
def test_a_number_may_be_at_its_ends_and_not_beyond(name: str, least: float, most: float) -> None:
    given: dict[str, Any] = {"workload": "sdsc" if name == "speed" else "word-count"}
    given |= {"slots": 1} if name == "key_groups" else {}
    for value in (least, most):
        assert getattr(Scenario(**{**given, name: value}), name) == value
    beyond = [least - 1 if isinstance(least, int) else least * 0.99]
    beyond += [most + 1 if isinstance(most, int) else most * 1.01] if name != "seed" else []
    for value in beyond:
        with pytest.raises(ConfigError, match=r"is out of range; use "):
            Scenario(**{**given, name: value})


def test_a_change_may_be_at_any_time_of_the_run() -> None:
    Scenario("word-count", duration_s=10.0, scale_at=((0.0, 1), (9.9, 128)))
    for at_s in (-0.1, 10.0):
        with pytest.raises(ConfigError, match="is outside the run of 10 s"):
            Scenario("word-count", duration_s=10.0, scale_at=((at_s, 2),))


@pytest.mark.parametrize("name", ["arrival", "table"])
@pytest.mark.parametrize("value", ["", "  ", "a\nb", "a\x1b[0m", "x" * 1001, "a\0"])
def test_a_name_that_is_none_is_refused(name: str, value: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"--{name}"):
        Scenario("word-count", **given)
    assert getattr(Scenario("word-count", **{name: "x" * 1000}), name) == "x" * 1000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"sink_format": "x" * 201},
        {"sink_format": "9a"},
        {"output_mode": "appendd"},
        {"budget": "1"},
        {"floor": "-1 s"},
        {"memory_max": "nan"},
        {"slo": ("mean < 1",)},
        {"migration": "sudden"},
        {"policy": "nobody"},
        {"require_slo": True},
        {"rate": "sine("},
    ],
)
def test_a_text_that_says_nothing_is_refused_before_spark(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Scenario("word-count", **given)


def test_a_scenario_may_say_all_of_it() -> None:
    Scenario(
        "word-count", sink_format="x" * 200, output_mode="update", budget="1 s", floor="0 s",
        memory_max="1 MB", slo=("mean < 1 s over 1 s",), migration="subscale", policy="psps",
        require_slo=True, rate="sine(base=1, amplitude=1, period=1s)",
    )  # fmt: skip


def test_a_record_holds_options_and_settings_whatever_mappings_they_are(tmp_path: Path) -> None:
    frozen = types.MappingProxyType({"hot": 2})
    conf = types.MappingProxyType({"spark.a": "b"})
    placed = Scenario("word-count", options=frozen, conf=conf, checkpoint=tmp_path).placed()
    placed.record()
    kept = json.loads((tmp_path / "scenario.json").read_text())
    assert (kept["options"], kept["conf"]) == ({"hot": 2}, {"spark.a": "b"})


def subscale(number: int, phase: str, groups: list[int], answered: list[int]) -> dict[str, Any]:
    return {
        "number": number, "groups": groups, "source": number, "destination": number + 1,
        "phase": phase, "answered": answered,
    }  # fmt: skip


def test_key_groups_are_counted_by_the_phase_that_they_are_in(tmp_path: Path) -> None:
    protocol = {
        "strategy": "subscale", "current": {"slots": 2}, "target": {"slots": 4}, "failed": "slot 3",
        "subscales": [
            subscale(0, "done", [1, 2], [1, 2]),
            subscale(1, "prefetch", [3], []),
            subscale(2, "switch", [4, 5, 6], [4]),
            subscale(3, "done", [7], [7]),
            subscale(4, "pending", [8], []),
        ],
    }  # fmt: skip
    path = checkpoints.of_two_steps(tmp_path / "ck", {"protocol": protocol})
    found = hg.inspect(path)
    moving = found["operators"]["aggregate-0"]["migration"]
    assert moving["groups_by_phase"] == {"done": 3, "prefetch": 1, "switch": 3, "pending": 1}
    assert moving["subscales"][2] == {
        "subscale": 2, "groups": [4, 5, 6], "source": 2, "destination": 3, "phase": "switch",
        "groups_answered": [4],
    }  # fmt: skip
    lines = inspection_lines(found)
    begin = lines.index(
        "migration  subscale, 2 to 4 slots; key groups: 3 done, 1 prefetch, 3 switch, 1 pending; "
        "going back: slot 3"
    )
    assert lines[begin + 1 : begin + 3] == [
        "           subscale 1: slot 1 to 2, prefetch, 0 of 1 key groups done",
        "           subscale 2: slot 2 to 3, switch, 1 of 3 key groups done",
    ]
    assert lines[begin + 3].startswith("restart ")


class BrokenSession:
    def stop(self) -> None:
        raise OSError("cannot stop")


@pytest.mark.parametrize("gone", [True, False])
def test_only_what_a_jvm_that_is_gone_says_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    class Life:
        def __init__(self, spark: object) -> None: ...

        def meaning(self, error: Exception) -> str | None:
            return "the JVM is gone" if gone else None

    monkeypatch.setattr(spark_side, "engine_module", lambda _: types.SimpleNamespace(JvmLife=Life))
    engine = SparkEngine()
    engine._spark = BrokenSession()
    if gone:
        engine.close()
        return
    with pytest.raises(OSError, match="cannot stop"):
        engine.close()


def test_the_demo_has_the_workloads_that_are_named_here() -> None:
    assert set(DEMO) == set(installed(WORKLOADS))


def test_a_record_is_no_link(tmp_path: Path) -> None:
    placed = Scenario("word-count", checkpoint=tmp_path / "ck").placed()
    (tmp_path / "ck").mkdir()
    placed.record()
    recorded(tmp_path / "ck")
    record = tmp_path / "ck" / "scenario.json"
    record.rename(tmp_path / "theirs")
    record.symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(ConfigError, match="records no workload"):
        recorded(tmp_path / "ck")
    with pytest.raises(CheckpointError, match=r"scenario.json cannot be written: .*; remove it\."):
        placed.record()
    assert (tmp_path / "theirs").read_bytes() == before


def test_a_journal_that_is_not_there_yet_has_no_batch(tmp_path: Path) -> None:
    batches = scenario_run._Batches(tmp_path / "journal.jsonl")
    assert not batches.any()
    journal = runs.journal(tmp_path / "journal.jsonl", [runs.start(), runs.stopped()])
    assert not batches.any()
    tail = batches._tail
    runs.journal(journal, [runs.batch(0)])
    assert batches.any()
    assert batches._tail is tail, "it reads on, and not all anew"
    runs.journal(journal, [runs.start()])
    assert not batches.any()


def test_the_result_of_a_run_on_a_store_names_the_store(tmp_path: Path) -> None:
    journal = runs.journal(tmp_path / "journal.jsonl", runs.scaled_run())
    it = Scenario("word-count", checkpoint=Path("s3://b/ck"), output=tmp_path)
    found = scenario_run._result(it, journal, None)
    assert (found["journal"], found["checkpoint"]) == ("s3://b/ck", "s3://b/ck")
    here = Scenario("word-count", checkpoint=tmp_path, output=tmp_path)
    assert scenario_run._result(here, journal, None)["journal"] == str(journal)


def test_a_format_that_nobody_knows_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    text = '[fleet]\nslots = 1\n[jobs.a]\nquery = "word-count"\nslo = ["mean < 1 s over 1 s"]\n'
    for kind, says in (("zzz", "; known: "), ("parqet", 'did you mean "parquet"')):
        (tmp_path / "fleet.toml").write_text(f'{text}sink = {{ format = "{kind}" }}\n')
        with pytest.raises(ConfigError, match=says):
            read_fleet(tmp_path / "fleet.toml")


def test_options_which_may_hold_a_password_are_in_no_text() -> None:
    secret = {"kafka.sasl.jaas.config": "hunter2"}
    job = JobSettings(
        "q", ("mean < 1 s over 1 s",), sink={"format": "kafka", **secret}, options=secret
    )
    for made in (Scenario("w", options=secret, conf=secret), job):
        assert "hunter2" not in repr(made)
        assert "hunter2" in str(vars(made))


def test_a_place_on_a_store_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("ck")) == tmp_path / "ck"
    assert absolute(Path("s3://b/ck")) == Path("s3://b/ck")
