"""Descriptions of runs and fleets with one value after the other changed: what is read, or refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import HeadgateError
from headgate.scenario import requests
from headgate.scenario.description import (
    RECORD,
    Scenario,
    check_place,
    settings_not_taken,
    to_verify,
)
from headgate.scenario.description import (
    recorded as recorded_run,
)
from headgate.scenario.fleet_file import read_fleet

Recorded = Callable[[str, Iterable[str]], None]


def told(do: Callable[[], Any], place: Path) -> str:
    """Return what a call returns, or its error, without the place of a test."""
    try:
        answer = str(do())
    except HeadgateError as error:
        answer = f"{type(error).__name__}: {error}"
    return answer.replace(str(place), "<here>")


def plain(value: Any) -> str:
    """Return the fields of a description that are not as they are by themselves."""
    fields = {f.name: f for f in dataclasses.fields(value)}
    own = {
        name: getattr(value, name)
        for name, field in fields.items()
        if field.default is dataclasses.MISSING or getattr(value, name) != field.default
    }
    return ", ".join(f"{name}={part!r}" for name, part in own.items())


# --- Fleets -------------------------------------------------------------------------------------------

FLEET: dict[str, list[str]] = {
    "slots": ['"auto"', "1", "0", "1000000", "1000001", '"8"', "true", "2.5"],
    "round": ['"5 s"', '"0 s"', '"5"', "5"],
    "max_actions_per_minute": ["1", "0", "10000", "10001", '"6"'],
    "cooldown": ['""', '"1 min"', '"x"'], "observe": ['"90 s"', "[]"], "hang": ['"0.5 s"', '"-1 s"'],
    "policy": ['"unified"', '"henge"', '"hange"', '"nobodys"'],
    "goal": ['"max-min"', '"total"', '"maxmin"', '"x"'],
    "budget": [
        "3", "[3]", "[]", '[{at = "60 s", slots = 1}, {at = "5 s", slots = 9}]',
        '[{at = "60 s", slots = 0}]', '[{at = 60, slots = 1}]', '[{at = "60 s"}]',
        '[{at = "60 s", slot = 1}]', '[{at = "1 s", slots = true}]', '[{zz = 1}]',
    ],
    "round_s": ["5"], "zzz": ["1"],
}  # fmt: skip
JOB: dict[str, list[str]] = {
    "query": ['"m:f"', "3"],
    "slo": [
        '["mean < 1 s over 1 s", "p99 < 5 s over 10 s"]', "[]", '""', "[1]", "1", '"mean < 1"',
        '["throughput > 5 / s over 10 s"]',
    ],
    "priority": ["0", "1", "0.5", "1e9", "1.1e9", "-1", "nan", "true", '"1"'],
    "utility": [
        '"linear"', '"step"', '"lognormal"', '"knee"', '"kneee"', '"m:f"', '"no.such:function"', "1",
        "[[1, 1], [2, 0.5]]", "[[1, 1]]", "[]", "[[1]]", "[[1, true]]", "[[1, 1e13]]", "[[2, 1], [1, 0]]",
        "[[1, 0.5], [2, 1.0]]", "[[1, 2]]",
    ],
    "sink": [
        '{format = "delta"}', '{format = "parqet"}', '{format = "zz"}', '{format = "org.x.Y"}',
        '{format = 3}', '{format = "a b"}', '{outputMode = "update"}', '{outputMode = "updat"}',
        '{path = "/data/b"}', '{path = 3}', '{x = [1]}', '{x = 1.5, y = true}', '{table = "t"}', '"x"',
    ],
    "checkpoint": ['"/ck/b"', '"/ck/b/../b"', '"/ck/\\u0007"', "3", '"/ck/other"'],
    "slots": [
        "{}", "{min = 2}", "{min = 2, start = 1}", "{max = 4, start = 5}", "{min = 0}",
        "{max = 9, start = 9}",
        "{start = 129}", "{max = 129}", "{max = 128}", "{max = true}", "3", "{mix = 1}",
    ],
    "trigger": ['{processingTime = "0 seconds"}', "{once = true}", "{processingTime = 3}", "3"],
    "options": ["{a = 1}", "3"],
    "key_groups": ["1", "0", "32767", "32768", "1.5"],
    "slot_rate": ["0.5", "0", "-1", "1e300", '"x"', "5"],
    "policy": ['"streamswitch(0.2)"', '"psps"', '"zz"', "3", '""'],
    "interval": ['"5 s"', '"zz"'],
    "keygroups": ["3"],
}  # fmt: skip
BESIDE: dict[str, str] = {
    "only a job": '[jobs.a]\nquery = "q"\nslo = "mean < 1 s over 1 s"\n',
    "no job": "[fleet]\n", "jobs are no table": "jobs = 3\n", "empty": "", "no TOML": "[fleet",
    "another table": '[fleets]\n[jobs.a]\nquery = "q"\n',
    "a job is no table": "[jobs]\na = 3\n", "lacks a query": '[jobs.a]\nslo = "mean < 1 s over 1 s"\n',
    "lacks an SLO": '[jobs.a]\nquery = "q"\n', "a bad name": '[jobs."a b"]\nquery = "q"\n',
    "a long name": f'[jobs.{"a" * 65}]\nquery = "q"\n',
    "defaults": '[defaults]\nslo = ["mean < 1 s over 1 s"]\ncheckpoint_root = "/r"\nkey_groups = 8\n'
    '[defaults.sink]\nformat = "csv"\nheader = true\n[defaults.slots]\nmax = 4\n'
    '[jobs.a]\nquery = "q"\n[jobs.a.sink]\nheader = false\n[jobs.b]\nquery = "q"\ncheckpoint = "/c"\n'
    '[jobs.b.slots]\nmin = 2\n',
    "root is no text": "[defaults]\ncheckpoint_root = 3\n[jobs.a]\n",
    "defaults with a query": '[defaults]\nquery = "q"\n[jobs.a]\n',
    "one path": '[defaults]\nslo = "mean < 1 s over 1 s"\nsink = {path = "/p"}\n[jobs.a]\nquery = "q"\n'
    '[jobs.b]\nquery = "q"\n',
    "one path, no files": '[defaults]\nslo = "mean < 1 s over 1 s"\nsink = {path = "/p", '
    'format = "delta"}'
    '\n[jobs.a]\nquery = "q"\n[jobs.b]\nquery = "q"\n',
}  # fmt: skip


def test_fleets_of_which_one_value_was_changed(tmp_path: Path, recorded: Recorded) -> None:
    path, lines = tmp_path / "fleet.toml", []

    def read(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
        path.write_text(text)
        found: list[str] = []

        def fleet() -> str:
            made = read_fleet(path, environment or {})
            found.extend(f"    {name}: {plain(job)}" for name, job in made.jobs.items())
            return plain(made.fleet)

        return [f"  {told(fleet, tmp_path)}", *found]

    job = {"query": '"q"', "slo": '"mean < 1 s over 1 s"'}
    other = '[jobs.other]\nquery = "q"\nslo = "mean < 1 s over 1 s"\ncheckpoint = "/ck/other"\n'
    for table, keys in (("fleet", FLEET), ("job", JOB)):
        for key, values in keys.items():
            for value in values:
                own = {**job, key: value} if table == "job" else job
                text = f"[fleet]\n{f'{key} = {value}' if table == 'fleet' else ''}\n[jobs.a]\n"
                text += "\n".join(f"{name} = {part}" for name, part in own.items())
                said = read(f"{text}\n{other if key == 'checkpoint' else ''}")
                lines.append(f"{table} {key} = {value}")
                lines += said[:1] if table == "fleet" else [said[-1]] if len(said) > 1 else said
    for name, text in BESIDE.items():
        lines += [name, *read(text)]
    whole = BESIDE["only a job"]
    for key, value in (
        ("SLOTS", "7"),
        ("ROUND", "2 s"),
        ("SLOTS", "seven"),
        ("ZZ", "1"),
        ("BUDGET", "1"),
    ):
        lines += [
            f"{key}={value}",
            *read(whole, {f"HEADGATE__FLEET__{key}": value, "HEADGATE__X": "1"})[:1],
        ]
    path.write_bytes(b"#" * ((1 << 20) + 1))
    lines.append(told(lambda: read_fleet(path, {}), tmp_path))
    recorded("fleet-files", lines)


# --- Runs ---------------------------------------------------------------------------------------------

RUN: dict[str, list[Any]] = {
    "workload": ["m:f", "sdsc", "word-count", "of somebody"],
    "rate": [1e-6, 9e-7, 5, 2.5, 1e12, "sine(5, 10, 60 s)", "zz", 0],
    "speed": [1.0, 0.0, 1e6, 1e7], "duration_s": [1e-6, 0.0, 1e9, 1e99], "seed": [0, -1],
    "slots": [1, 0, 128, 129], "slots_max": [1, 0, 128, 129, None],
    "scale_at": [((0.0, 1),), ((59.9, 2),), ((60.0, 2),), ((-1.0, 2),), ((5.0, 129),)],
    "key_groups": [1, 2, 32767, 32768], "budget": ["800 ms", "0 s", "zz"], "floor": ["0 s", "-1 s"],
    "slo": [("mean < 1 s over 1 s",), ("zz",)], "require_slo": [True],
    "policy": ["psps", "zz", "unified"],
    "slot_rate": [0.5, 0.0], "migration": ["subscale(per_host=4)", "zz"],
    "memory_max": ["5 MB", "0", "zz"],
    "arrival": ["at", "", " ", "a\x07", "a" * 1000, "a" * 1001], "table": ["a.b", ""],
    "sink_format": ["csv", "a b", "a" * 200, "a" * 201], "output_mode": ["update", "upd"],
    "options": [{"rate": 3, "x": [1]}],
}  # fmt: skip
RECORDS: dict[str, list[Any]] = {
    "workload": ["m:f", "kafka-clicks", "sdsc", "zz", 3, None], "rate": ["5", 5, 1e99, [1]],
    "options": [{"columns": "a"}, {"x": "a"}, {"x": 5}, {"rate": ["y"]}, [], None],
    "seed": [7, -1, "1", True],
    "sink_format": ["csv", "delta", 3], "table": ["t", 5], "output_mode": ["update", "zz"],
    "output": ["<beside>", "/elsewhere", 3, None], "conf": [{"a": "b"}, 3], "slo": ["x", ["y"]],
    "slots": [999, "x"], "slots_max": ["x", 1], "zzz": [1], "policy": ["zz", 1], "scale_at": [[1], 1],
    "duration_s": [0, "x"], "speed": [2, "x"],
}  # fmt: skip


def test_runs_of_which_one_value_was_changed(tmp_path: Path, recorded: Recorded) -> None:
    lines = []
    for name, values in RUN.items():
        for value in values:
            given = {"workload": "nexmark-q1", "checkpoint": tmp_path / "ck", name: value}
            if name == "speed":
                given["workload"] = "sdsc"

            def made(given: Mapping[str, Any] = given) -> str:
                run = Scenario(**given)
                return f"{plain(run.placed())} {run.build_options()}"

            shown = repr(value) if len(repr(value)) < 60 else f"{len(value)} characters"
            lines.append(f"{name}={shown}: {told(made, tmp_path)}")
    for place in (
        "<here>/a/b",
        "<here>/file",
        "<here>/file/b",
        "s3://b/c",
        "hdfs://h/x",
        "zz:/x",
        "file:/x",
    ):
        for or_store in (False, True):
            text = place.replace("<here>", str(tmp_path))
            (tmp_path / "file").touch()
            lines.append(
                f"{place} {told(lambda t=text, o=or_store: check_place(Path(t), or_store=o), tmp_path)}"
            )
    recorded("scenarios", lines)


def test_records_of_which_one_value_was_changed(tmp_path: Path, recorded: Recorded) -> None:
    """A comparison takes numbers from a record, and neither code nor places nor settings."""
    lines, checkpoint = [], tmp_path / "ck"
    checkpoint.mkdir()
    beside = str(Scenario("sdsc", checkpoint=checkpoint).placed().output)
    Scenario("nexmark-q3", rate=7.5, options={"hot": 2}, checkpoint=checkpoint).placed().record()
    whole = json.loads((checkpoint / RECORD).read_text())
    changes = [(name, value) for name, values in RECORDS.items() for value in values]
    typed: list[dict[str, Any]] = [
        {}, {"workload": "m:f"}, {"options": {"x": "typed", "rate": 1}}, {"output": Path("/out")},
        {"table": "mine"}, {"sink_format": "delta"}, {"output_mode": "complete", "conf": {"a": "c"}},
    ]  # fmt: skip
    for name, value in [("", None), *changes]:
        record = {**whole, name: beside if value == "<beside>" else value} if name else whole
        (checkpoint / RECORD).write_text(json.dumps(record))
        found = told(lambda: plain(recorded_run(checkpoint)), tmp_path)
        lines.append(f"{name}={value!r}: {found}")
        for more in (
            typed
            if name in ("", "workload", "sink_format", "table", "options", "output")
            else typed[:1]
        ):
            given: dict[str, Any] = {"workload": None, "output": None, "options": {}, **more}

            def compared(given: Mapping[str, Any] = given) -> str:
                made = to_verify(checkpoint, **given)
                return f"{plain(made)}; not taken: {settings_not_taken(made)}"

            lines.append(f"    {more}: {told(compared, tmp_path)}")
    for text in ("", "{", "[]", '{"workload": "sdsc"}'):
        (checkpoint / RECORD).write_text(text)
        lines.append(f"{text!r}: {told(lambda: recorded_run(checkpoint), tmp_path)}")
    recorded("records", lines)


@pytest.mark.parametrize("act", ["freeze", "stop"])
def test_who_asks_waits_for_an_answer(act: str, tmp_path: Path, recorded: Recorded) -> None:
    """The answer comes while the asker sleeps for the third time, or never, or it is no."""
    checkpoint, lines = tmp_path / "ck", []
    control = checkpoint / "headgate" / "control"
    control.mkdir(parents=True)
    for answer in (None, {"refused": None, "at_ms": 5, "detail": "all"}, {"refused": "no."}):
        for wait_s in (0.0, 0.1, 0.3, 1.0, 86_400.5):
            slept: list[float] = []

            def sleep(seconds: float, slept: list[float] = slept, answer: Any = answer) -> None:
                slept.append(seconds)
                if len(slept) == 3 and answer is not None:
                    for path in control.glob("*.json"):
                        path.with_suffix(".done").write_text(json.dumps(answer))
                        path.unlink()

            def asked(wait_s: float = wait_s, sleep: Any = sleep) -> Any:
                if act == "stop":
                    return requests.stop(checkpoint, wait_s=wait_s, sleep=sleep)
                said = requests.ask(
                    checkpoint,
                    act,
                    reason="INC",
                    arguments={"until_s": None},
                    wait_s=wait_s,
                    sleep=sleep,
                )
                return {key: said[key] for key in ("act", "reason", "arguments", "at_ms", "detail")}

            lines.append(
                f"{answer} {wait_s:g} s: {told(asked, tmp_path)}; slept {len(slept)} times"
            )
            lines.append(f"    {len(list(control.glob('*.json')))} requests left")
    recorded(f"asked-to-{act}", lines)
