"""A fleet's description, and its commands that need no cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from headgate.cli import app
from headgate.cli.fleet import FleetProgress
from headgate.core.errors import ConfigError, EngineError
from headgate.core.utility import Custom, Knee, Linear, Metric
from headgate.journal import (
    FleetDecided,
    FleetJobChanged,
    FleetJobState,
    FleetRound,
    FleetStart,
    JournalWriter,
)
from headgate.journal.schema import VERSION
from headgate.report.fleet import fleet_status
from headgate.scenario import fleet as fleet_run
from headgate.scenario.fleet import check_fleet
from headgate.scenario.fleet_file import FleetSettings, Slots, read_fleet

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fleet.toml"
JOB = """
[jobs.counts]
query = "nexmark-q7"
slo = "mean < 1 s over 1 s"
"""


def described(tmp_path, text, environment=None):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path, environment or {})


def test_the_example_has_six_jobs_of_mixed_intents():
    jobs = read_fleet(EXAMPLE, {}).jobs
    intents = [job.worth().intents for job in jobs.values()]
    assert len(jobs) == 6
    assert {i.metric for each in intents for i in each} == set(Metric)
    assert any(i.percentile == 95.0 for each in intents for i in each)
    assert any(len(each) == 2 for each in intents)


def test_the_second_example_has_eight_jobs_with_policies_of_their_own_and_a_budget_that_grows():
    found = read_fleet(EXAMPLE.with_name("together.toml"), {})
    policies = [job.policy.partition("(")[0] for job in found.jobs.values()]
    assert sorted(policies) == ["", "psps", "psps", *["streamswitch"] * 4, "unified"]
    assert [name for name, job in found.jobs.items() if job.pools] == ["enriched", "scored"]
    (step,) = found.fleet.budget
    assert step.slots > int(found.fleet.slots)
    rows = check_fleet(EXAMPLE.with_name("together.toml"))["rows"]
    assert [rows[0]["policy"], rows[-1]["policy"]] == ["streamswitch(0.2)", "the fleet's"]


class Told:
    """A fleet that is told budgets."""

    def __init__(self):
        self.budgets = []

    def set_budget(self, slots):
        self.budgets.append(slots)


def test_the_budget_changes_when_the_file_says_so(tmp_path):
    steps = "".join(
        f"[[fleet.budget]]\nat = '{at} s'\nslots = {slots}\n" for at, slots in ((60, 9), (30, 5))
    )
    file = described(tmp_path, steps + JOB)
    events, fleet = fleet_run._Events(SimpleNamespace(), file, None), Told()
    for time_s in (0.0, 29.0, 31.0, 59.0, 61.0, 99.0):
        events.pass_on(fleet, time_s)
    assert fleet.budgets == [5, 9]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[fleet]\nbudget = 3\n",
            r"write tables \[\[fleet.budget\]\] instead, each with at and slots",
        ),
        ("[[fleet.budget]]\nat = 3\nslots = 3\n", r'is no time; write at = "60 s"'),
        ("[[fleet.budget]]\nat = '3 s'\nslots = 0\n", r"slots = 0 is out of range"),
        ("[[fleet.budget]]\nwhen = '3 s'\n", r'unknown key "when"; use at and slots'),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        described(tmp_path, text + JOB)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("policy = 'streamswich'\n", r'unknown policy "streamswich"; did you mean "streamswitch"'),
        ("policy = 'psps(blend=x)'\n", "blend=x is not"),
        ("policy = 'streamswitch'\ninterval = '3 s'\n", "interval is for pools of replicas only"),
        ("policy = 'psps'\ninterval = 'soon'\n", "soon"),
    ],
)
def test_a_policy_of_a_job_that_is_not_there_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        described(tmp_path, JOB + text)


def test_a_job_takes_from_the_defaults_what_it_does_not_say(tmp_path):
    text = """
    [defaults]
    checkpoint_root = "/data"
    priority = 3
    slots = { min = 2, max = 8 }
    sink = { format = "noop" }
    """
    job = described(tmp_path, text + JOB + "slots = { max = 4 }\n").jobs["counts"]
    assert (job.slots, job.priority) == (Slots(2, 4, 2), 3.0)
    assert (job.checkpoint, job.sink) == ("/data/counts", {"format": "noop"})


@pytest.mark.parametrize(
    ("given", "most"), [("", 16), ("slots = { start = 4 }\n", 16), ("slots = { max = 8 }\n", 8)]
)
def test_a_job_may_have_as_many_slots_as_key_groups_unless_it_says_otherwise(tmp_path, given, most):
    text = JOB + "key_groups = 16\n" + given
    assert described(tmp_path, text).jobs["counts"].slots_max == most
    found = check_fleet(tmp_path / "fleet.toml")
    assert found["slots_wanted_at_most"] == most


def test_jobs_may_write_to_one_path_where_the_sink_is_no_file_sink(tmp_path):
    defaults = "[defaults]\nsink = { format = 'delta', path = '/out' }\n"
    found = described(tmp_path, defaults + JOB + JOB.replace("counts", "sums"))
    assert {job.sink["path"] for job in found.jobs.values()} == {"/out"}


def test_the_environment_wins_over_the_file(tmp_path):
    found = described(tmp_path, "[fleet]\nslots = 8\n" + JOB, {"HEADGATE__FLEET__SLOTS": "32"})
    assert found.fleet.slots == 32


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[flet]\n" + JOB, r'the file has the unknown key "flet"; did you mean "fleet"\?'),
        (
            "[fleet]\nslot = 3\n" + JOB,
            r'\[fleet\] has the unknown key "slot"; did you mean "slots"\?',
        ),
        ("[fleet]\nslots = 0\n" + JOB, r"\[fleet\] fleet slots=0 is out of range"),
        ('[fleet]\ngoal = "totl"\n' + JOB, r'unknown goal "totl"; did you mean "total"\?'),
        (
            '[fleet]\npolicy = "heng"\n' + JOB,
            r'unknown fleet policy "heng"; did you mean "henge"\?',
        ),
        (
            '[fleet]\npolicy = "unified"\ngoal = "max-min"\n' + JOB,
            'fleet policy unified has no goal "max-min"; use policy = "henge"',
        ),
        ('[fleet]\nround = "10"\n' + JOB, r'duration "10" has no unit'),
        ("[fleet]\nmax_actions_per_minute = 0\n" + JOB, "max_actions_per_minute=0 is out of range"),
        ("[defaults]\nquery = 'x'\n" + JOB, r'\[defaults\] has the unknown key "query"'),
        (
            JOB + "prio = 3\n",
            r'\[jobs.counts\] has the unknown key "prio"; did you mean "priority"\?',
        ),
        (JOB + "priority = 0\n", r"\[jobs.counts\] priority is 0.0; use a number above 0"),
        (JOB + 'utility = "nee"\n', r'unknown utility "nee"; did you mean "knee"\?'),
        (JOB + "utility = 5\n", r"utility = 5 is not text or points"),
        (JOB + "utility = []\n", r"\[jobs.counts\] utility = \[\] is not points; write"),
        (JOB + "utility = [[1, 1], [2]]\n", "is not points"),
        (JOB + "utility = [[1, true]]\n", "is not points"),
        (JOB + "utility = [[1, 1], [1e13, 0]]\n", "is not points"),
        (JOB + f"utility = {[[k, 1] for k in range(101)]}\n", "1 to 100 pairs"),
        (JOB + "utility = [[2, 1], [1, 0.5]]\n", r"\[jobs.counts\] piecewise .* do not ascend"),
        (JOB + "utility = [[1, 2], [9, 0]]\n", "is 2.0; keep it between 0 and 1"),
        (JOB + "utility = [[1, 0.5]]\n", "at its threshold"),
        ('[fleet]\ncooldown = "30"\n' + JOB, r'duration "30" has no unit'),
        (
            JOB + 'key_groups = "many"\n',
            r"\[jobs.counts\] key_groups = 'many' is not a whole number",
        ),
        (JOB + "key_groups = 0\n", "key_groups=0 is out of range; use 1 to 32767"),
        (JOB + "slots = { max = 500 }\n", "slots max=500 exceeds 128 key groups"),
        (
            JOB + "key_groups = 16\nslots = { start = 20 }\n",
            "slots start=20 exceeds 16 key groups",
        ),
        (JOB + "slots = { min = 3, max = 2 }\n", "not 1 <= min <= start <= max"),
        (JOB + "trigger = { once = 'x' }\n", r"trigger \['once'\] is not for a fleet"),
        (JOB + "slot_rate = -1\n", "slot_rate=-1 is out of range"),
        ("[jobs.a]\nquery = 'nexmark-q7'\n", r"\[jobs.a\] there is no SLO"),
        ("[jobs.a]\nquery = 'q'\nslo = 5\n", r"\[jobs.a\] slo = 5 is not text"),
        ("[jobs.a]\nquery = 'q'\nslo = [5]\n", r"\[jobs.a\] slo = \[5\] is not text"),
        (JOB + "priority = true\n", r"\[jobs.counts\] priority = True is not a number"),
        (JOB + "trigger = { processingTime = 5 }\n", "trigger processingTime=5 is not text"),
        (JOB + "trigger = { processingTime = 'soon' }\n", '"soon" is not a duration'),
        (JOB + "sink = { format = 'delta', table = 't' }\n", "a table is not a sink of a fleet"),
        (
            "[defaults]\ncheckpoint_root = 3\n" + JOB,
            r"\[defaults\] checkpoint_root = 3 is not text",
        ),
        (
            "[defaults]\nsink = { path = '/out' }\n" + JOB + JOB.replace("counts", "sums"),
            'jobs "counts" and "sums" both write to "/out"; give each a path of its own',
        ),
        (
            JOB + "checkpoint = '/c'\n" + JOB.replace("counts", "sums") + "checkpoint = '/c'\n",
            'jobs "counts" and "sums" both keep their state in "/c"; give each a checkpoint',
        ),
        ("[jobs.a]\nslo = 'juice >= 0.9'\n", r"\[jobs.a\] lacks query; add it"),
        ("[jobs.a]\nquery = 'q'\nslo = 'mean < 3 over 1 s'\n", r"\[jobs.a\] SLO .* no unit"),
        ("[jobs.'a b']\nquery = 'q'\n", 'job name "a b" cannot name files'),
        ("jobs = 3\n", r"\[jobs\] is 3 and not a table"),
        (
            JOB + "sink = { format = '9a' }\n",
            "sink format='9a' is no name of a format; use parquet",
        ),
        (JOB + "sink = { format = 5 }\n", "sink format=5 is no name of a format"),
        (
            JOB + "sink = { outputMode = 'all' }\n",
            "sink outputMode='all' is unknown; use append, up",
        ),
        (JOB + "sink = { header = ['x'] }\n", r"sink header=\['x'\] is not text or a number"),
        (JOB + "sink = { path = 5 }\n", "sink path=5 is not text; name a directory"),
        (JOB + 'sink = { path = "a\\u0000" }\n', r"\[jobs.counts\] "),
        (JOB + 'checkpoint = "a\\u0000"\n', r"\[jobs.counts\] "),
        (JOB + "priority = 1.1e9\n", r"priority is 1.1e\+09; use a number above 0, 1e\+09 at most"),
        (JOB + "slot_rate = 0\n", "slot_rate=0 is out of range"),
        (JOB + "slot_rate = 1.1e9\n", "slot_rate=1.1e\\+09 is out of range"),
        (JOB + "key_groups = 32768\n", "key_groups=32768 is out of range"),
        (JOB + "slots = { min = 0 }\n", r"slots min=0, start=0, max=0 are not"),
        (JOB + "slots = { start = 3, max = 2 }\n", r"slots min=1, start=3, max=2 are not"),
        (
            "[fleet]\nslots = 1000001\n" + JOB,
            "fleet slots=1000001 is out of range; use 1 to 1,000,000",
        ),
        ("[fleet]\nslots = 'many'\n" + JOB, "fleet slots='many' is out of range"),
        (
            "[fleet]\nmax_actions_per_minute = 10001\n" + JOB,
            "=10001 is out of range; use 1 to 10000",
        ),
        ("[fleet]\nobserve = 'x'\n" + JOB, "is not a duration"),
        ("[fleet]\nhang = 'x'\n" + JOB, "is not a duration"),
        ("[fleet]\nbudget = [3]\n" + JOB, r"\[fleet\] budget is \[3\]"),
        (
            "[[fleet.budget]]\nat = '1 s'\nslots = true\n" + JOB,
            "slots = True is out of range; use 1 or more",
        ),
        (
            "[[fleet.budget]]\nat = '1 s'\nslots = 2\n" * 1001 + JOB,
            "occurs 1001 times; use 1000",
        ),
        (
            "[defaults]\ncheckpoint = 'x'\n" + JOB,
            r"\[defaults\] has the unknown key \"checkpoint\"",
        ),
        (JOB + "utility = [[1, 1], 2]\n", "is not points"),
        (JOB + "utility = [[1, 1], [2, '0']]\n", "is not points"),
        (f"[jobs.{'a' * 65}]\nquery = 'q'\n", "cannot name files; use 1 to 64"),
        ("[fleet]\n", "has no job"),
        ("[fleet\n", "is not TOML"),
    ],
)
def test_a_wrong_description_is_refused_in_one_sentence_that_names_the_key(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        described(tmp_path, text)


def test_a_description_may_go_to_the_ends_of_what_it_may_say(tmp_path):
    points = [[k / 10, 1 - (k - 10) / 100] for k in range(10, 109)] + [[1e12, 0]]
    text = "[fleet]\nslots = 1000000\nmax_actions_per_minute = 10000\n"
    text += "[[fleet.budget]]\nat = '1 s'\nslots = 1\n" * 1000
    text += f"[jobs.{'a' * 64}]\nquery = 'q'\nslo = ['mean < 1 s over 1 s']\npriority = 1e9\n"
    text += f"key_groups = 32767\nslot_rate = 1e9\nutility = {points}\n"
    text += f"sink = {{ format = '{'a.' + 'x' * 198}', on = true, n = 1, share = 0.5 }}\n"
    text += "slots = { min = 3, start = 3, max = 3 }\ntrigger = { processingTime = '0 s' }\n"
    found = described(tmp_path, text)
    (job,) = found.jobs.values()
    assert (found.fleet.slots, found.fleet.max_actions_per_minute) == (10**6, 10**4)
    assert (len(found.fleet.budget), job.key_groups, job.slot_rate) == (1000, 32767, 1e9)
    assert (job.slots, len(job.utility.points)) == (Slots(3, 3, 3), 100)
    few = described(tmp_path, "[fleet]\nslots = 1\nmax_actions_per_minute = 1\n" + JOB)
    assert (few.fleet.slots, few.fleet.max_actions_per_minute) == (1, 1)
    assert few.jobs["counts"].shape() == Knee()


def test_variables_that_are_others_change_nothing(tmp_path, monkeypatch):
    others = {"HEADGATE__JOBS__SLOTS": "32", "HEADGATE__FLEET__ROUND": "3 s"}
    assert described(tmp_path, JOB, others).fleet == FleetSettings(round="3 s")
    monkeypatch.setenv("HEADGATE__FLEET__GOAL", "max-min")
    assert read_fleet(tmp_path / "fleet.toml").fleet.goal == "max-min"
    with pytest.raises(ConfigError, match="HEADGATE__FLEET__SLOTS"):
        described(tmp_path, JOB, {"HEADGATE__FLEET__SLOTS": "9" * 30})


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("path = '/out'", "path = '/out'", True),
        ("format = 'CSV', path = '/out'", "path = '/out'", True),
        ("path = '/out'", "path = '/other'", False),
        ("format = 'console'", "format = 'console'", False),
    ],
)
def test_only_files_are_refused_to_two_jobs(tmp_path, one, other, shared):
    sums = JOB.replace("counts", "sums")
    text = f"{JOB}sink = {{ {one} }}\n{sums}sink = {{ {other} }}\n"
    with pytest.raises(ConfigError, match="both write to") if shared else nullcontext():
        described(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the description of the fleet .* cannot be read"):
        read_fleet(tmp_path / "none.toml", {})


def test_a_users_own_utility_is_loaded_and_checked(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def half(v): return 1.0 if v <= 1.0 else 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = described(tmp_path, JOB + 'utility = "mine:half"\n').jobs["counts"]
    assert isinstance(job.shape(), Custom)
    assert job.worth().current([2.0]) == 0.5
    linear = described(tmp_path, JOB + 'utility = "linear"\n').jobs["counts"]
    assert linear.shape() == Linear()


def test_points_in_a_description_are_a_utility_with_straight_lines_between_them(tmp_path):
    text = '[jobs.counts]\nquery = "nexmark-q7"\nslo = "mean < 4 s over 10 s"\npriority = 10\n'
    text += "utility = [[4, 1.0], [8, 0.5], [20, 0]]\n"
    job = described(tmp_path, text).jobs["counts"]
    worth = [job.worth().current([latency_s]) for latency_s in (3.0, 6.0, 14.0, 99.0)]
    assert worth == [10.0, 7.5, 2.5, 0.0]
    assert check_fleet(tmp_path / "fleet.toml")["rows"][0]["utility"][1] == (8.0, 0.5)


@pytest.mark.parametrize("command", [["fleet", "check"], ["fleet", "run", "--check"]])
def test_check_says_what_would_run_and_needs_no_cluster(command):
    result = CliRunner().invoke(app, [*command, str(EXAMPLE), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["slots"], len(found["rows"])) == (19, 6)


def test_check_refuses_a_function_that_cannot_be_loaded(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text("[jobs.a]\nquery = 'no.such:thing'\nslo = 'juice >= 0.9'\n")
    result = CliRunner().invoke(app, ["fleet", "check", str(path)])
    assert result.exit_code == 2
    assert "cannot load" in result.output


def test_check_refuses_a_workload_that_is_not_there(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text("[jobs.a]\nquery = 'nexmark-q77'\nslo = 'juice >= 0.9'\n")
    with pytest.raises(ConfigError, match='unknown workload "nexmark-q77"'):
        check_fleet(path)


def seen(time_s, utility):
    job = FleetJobState("a", "running", utility, 10.0, met=utility >= 10.0, slots={"op": 2})
    return FleetRound(time_s, (job,), utility, 10.0, 2, 8, congested=False)


def test_status_says_who_got_slots_with_the_utility_before_and_after(tmp_path):
    with JournalWriter(tmp_path / "fleet.jsonl") as journal:
        journal.write(FleetStart("henge", 8, 10.0, VERSION))
        journal.write(FleetJobChanged("a", "running", "submitted"))
        journal.write(seen(10.0, 4.0))
        journal.write(
            FleetDecided("henge", "reconfiguration", "miss", "a misses", True, {"a": {"op": 5}},
                         time_s=10.0)
        )  # fmt: skip
        journal.write(seen(20.0, 10.0))
    found = fleet_status(tmp_path)
    (row,) = found["rows"]
    assert (row["slots"], row["utility_before"], row["utility_after"]) == ("a op -> 5", 4.0, 10.0)
    assert found["touched"] == {"a": 1}
    assert found["policy"] == "henge"
    assert fleet_status(tmp_path, since_s=5.0)["rows"] == []


def test_status_has_a_row_per_job_also_of_one_that_ended(tmp_path):
    with JournalWriter(tmp_path / "fleet.jsonl") as journal:
        journal.write(FleetStart("henge", 8, 10.0, VERSION))
        journal.write(FleetJobChanged("gone", "failed", "ValueError: the sink is gone"))
        journal.write(seen(10.0, 4.0))
    running, gone = fleet_status(tmp_path)["jobs"]
    assert (running["job"], running["utility"], running["of"], running["slots"]) == ("a", 4, 10, 2)
    assert (gone["job"], gone["state"]) == ("gone", "failed")
    result = CliRunner().invoke(app, ["fleet", "status", str(tmp_path)])
    assert "ValueError: the sink is gone" in result.stdout


def test_status_is_that_of_the_newest_fleet_in_a_journal(tmp_path):
    with JournalWriter(tmp_path / "fleet.jsonl") as journal:
        journal.write(FleetStart("henge", 8, 10.0, VERSION))
        journal.write(FleetJobChanged("old", "failed", "ValueError: the sink is gone"))
        journal.write(seen(500.0, 4.0))
        journal.write(
            FleetDecided("henge", "reconfiguration", "miss", "a misses", True, {"a": {"op": 5}},
                         time_s=500.0)
        )  # fmt: skip
        journal.write(FleetStart("unified", 8, 10.0, VERSION))
        journal.write(seen(10.0, 10.0))
    found = fleet_status(tmp_path)
    assert (found["policy"], found["rows"], found["touched"]) == ("unified", [], {})
    assert [job["job"] for job in found["jobs"]] == ["a"]
    assert found["rounds_below_maximum"] == 0.0


def test_status_knows_a_job_that_ended_after_the_last_round(tmp_path):
    with JournalWriter(tmp_path / "fleet.jsonl") as journal:
        journal.write(FleetStart("henge", 8, 10.0, VERSION))
        journal.write(FleetJobChanged("a", "running", "submitted"))
        journal.write(seen(10.0, 4.0))
        journal.write(FleetJobChanged("a", "gone", ""))
    (job,) = fleet_status(tmp_path)["jobs"]
    assert job["state"] == "gone"


@pytest.mark.parametrize(("utility", "oversubscribed"), [(4.0, True), (10.0, False)])
def test_a_fleet_at_rest_with_a_job_below_its_slo_is_oversubscribed(
    tmp_path, utility, oversubscribed
):
    with JournalWriter(tmp_path / "fleet.jsonl") as journal:
        journal.write(FleetStart("henge", 8, 10.0, VERSION))
        journal.write(seen(10.0, utility))
        journal.write(FleetDecided("henge", "nothing", "converged", "Converged.", acts=False))
    assert fleet_status(tmp_path)["oversubscribed"] is oversubscribed


def test_status_without_a_journal_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no fleet's journal"):
        fleet_status(tmp_path)


class Starting:
    """A fleet that is interrupted while it starts, and goes on starting until it is stopped."""

    rounds, actions, jobs, failures = (), (), {}, {}
    policy, limits = SimpleNamespace(name="henge"), SimpleNamespace(slots=8)

    def __init__(self):
        self.stopped, self.stopped_in_time = threading.Event(), False

    def start(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.stopped_in_time = self.stopped.wait(30)

    def stop(self):
        self.stopped.set()


def test_an_interrupt_ends_a_run_whose_fleet_is_still_starting(tmp_path, monkeypatch):
    path, starting = tmp_path / "fleet.toml", Starting()
    path.write_text(JOB)
    monkeypatch.setattr(fleet_run, "_fleet", lambda *given, **settings: starting)
    result = fleet_run.run_fleet_file(path, duration_s=60.0, work=tmp_path / "work")
    assert starting.stopped_in_time
    assert (result["rounds"], result["policy"]) == (0, "henge")


def test_a_fleet_that_starts_is_shown_meanwhile(monkeypatch):
    shown, over = [], threading.Event()

    def see(fleet):
        shown.append(fleet)
        over.set()

    monkeypatch.setattr(fleet_run, "PROGRESS_S", 0.05)
    with fleet_run._show_start(threading.Event(), "the fleet", see):
        assert over.wait(30)
    assert set(shown) == {"the fleet"}
    assert "headgate-fleet-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("how", ["interrupted", "failed", "over"])
def test_a_fleet_is_stopped_however_its_run_ends(tmp_path, monkeypatch, how):
    class Fleet(Starting):
        jobs: ClassVar = {"counts": "failed" if how == "failed" else "running"}
        failures: ClassVar = {"counts": "no room"} if how == "failed" else {}

        def start(self):
            if how == "interrupted":
                os.kill(os.getpid(), signal.SIGTERM)

    path, fleet, closed = tmp_path / "fleet.toml", Fleet(), []
    path.write_text(JOB)
    monkeypatch.setattr(fleet_run, "_fleet", lambda *given, **settings: fleet)
    monkeypatch.setattr(fleet_run.SparkEngine, "close", lambda _: closed.append("closed"))
    monkeypatch.setattr(fleet_run, "PROGRESS_S", 0.05)
    duration_s = 60.0 if how == "interrupted" else 0.1
    with pytest.raises(EngineError, match="ended: no room") if how == "failed" else nullcontext():
        result = fleet_run.run_fleet_file(path, duration_s=duration_s)
        assert Path(result["work"]).name.startswith("headgate-fleet-")
        assert (result["file"], result["duration_s"]) == (str(path), duration_s)
    assert (fleet.stopped.is_set(), len(closed)) == (True, 1)


class Shown:
    """A fleet as the command line looks at it."""

    actions = ()

    def __init__(self):
        self.jobs, self.failures, self.rounds = {}, {}, []


def test_a_job_that_fails_is_shown_at_once_with_its_reason_and_only_once(capsys):
    shown, running = FleetProgress(), Shown()
    running.jobs = {"good": "running", "bad": "running"}
    shown(running)
    running.jobs["bad"], running.failures["bad"] = "failed", "ValueError: the column is gone"
    shown(running)
    shown(running)
    running.rounds.append(FleetRound(2.0, (), 3.0, 4.0, 1, 8, False))
    shown(running)
    assert capsys.readouterr().err.splitlines() == [
        "job good running",
        "job bad running",
        "job bad failed: ValueError: the column is gone",
        "    2.0 s  utility 3 of 4  slots 1 of 8  actions 0",
    ]


def test_a_record_that_a_failure_quotes_commands_no_terminal(capsys):
    running = Shown()
    running.jobs, running.failures = (
        {"bad": "failed"},
        {"bad": "value '\x1b[2J\x1b]0;x\x07'\nno number"},
    )
    FleetProgress()(running)
    assert capsys.readouterr().err == (
        "job bad failed: value '\\x1b[2J\\x1b]0;x\\x07'\\nno number\n"
    )


def test_a_fleet_whose_jobs_all_ended_for_one_reason_ends_with_it():
    ended = Shown()
    ended.jobs = {"one": "failed", "two": "failed"}
    ended.failures = dict.fromkeys(ended.jobs, "Spark's JVM is gone.")
    with pytest.raises(EngineError, match="ended: Spark's JVM is gone"):
        fleet_run._raise_if_all_failed(ended)
    ended.failures["two"] = "The disk is full."
    with pytest.raises(EngineError, match=r"one failed \(Spark's JVM is gone.\), two failed \(The"):
        fleet_run._raise_if_all_failed(ended)
