"""Exit codes, what goes to stdout, what people type."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import runs
from fakes import AGREES, DIFFERS, FakeClock, FakeEngine
from typer.main import get_command
from typer.testing import CliRunner

from headgate import scenario as scenarios
from headgate.cli import answer, app, extensions
from headgate.cli.gate import GatedTyper
from headgate.cli.input import parse_options, parse_scale_at
from headgate.core.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    UnsupportedQuery,
)
from headgate.core.quiet import NoiseFilter

Invoke = Callable[..., Any]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """An engine behind every scenario; its clock moves by itself."""
    fake = FakeEngine()
    real = scenarios.run_scenario

    def run(it: scenarios.Scenario, on_progress: Any) -> dict[str, Any]:
        clock = FakeClock()
        return real(it, on_progress, engine=fake, clock_s=clock, sleep=clock.sleep)

    monkeypatch.setattr(scenarios, "run_scenario", run)
    monkeypatch.setattr(scenarios, "verify_scenario", lambda it: dict(fake.verify(it)))
    return fake


@pytest.fixture
def invoke(tmp_path: Path) -> Invoke:
    def call(*args: str) -> Any:
        return CliRunner().invoke(app, list(args))

    return call


def commands_below(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for each, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(command, f"{name}{each} ")
        else:
            yield name + each, command


def test_no_flag_of_any_command_is_on_unless_it_is_typed() -> None:
    flags = [
        (name, option.name, option.default)
        for name, command in commands_below(get_command(app))
        for option in command.params
        if getattr(option, "is_flag", False)
    ]
    assert len(flags) > 30
    assert [flag for flag in flags if flag[2]] == []


def run_args(tmp_path: Path, *more: str) -> list[str]:
    return ["run", "nexmark-q5", "--duration", "5s", "--checkpoint", str(tmp_path / "ck"), *more]


def test_a_run_exits_with_0_and_says_what_happened(
    engine: FakeEngine, invoke: Invoke, tmp_path: Path
) -> None:
    done = invoke(*run_args(tmp_path, "--scale-at", "2s=4", "--verify"))
    assert done.exit_code == 0, done.output
    assert "2 → 4" in done.stdout
    assert "yes: 900 rows equal" in done.stdout
    assert "\x1b" not in done.stdout


def test_every_option_reaches_the_scenario(
    engine: FakeEngine, invoke: Invoke, tmp_path: Path
) -> None:
    more = (
        "--rate 20000 --slots 3 --scale-at 1s=4 --scale-at 500ms=2 --key-groups 64 --seed 9 "
        "--option hot=2 --option mode=x --format json --out"
    ).split()
    done = invoke(*run_args(tmp_path, *more, str(tmp_path / "o"), "--budget", "800 ms", "--json"))
    assert done.exit_code == 0, done.output
    assert engine.scenario == scenarios.Scenario(
        workload="nexmark-q5",
        rate=20000.0,
        duration_s=5.0,
        slots=3,
        scale_at=((0.5, 2), (1.0, 4)),
        key_groups=64,
        budget="800 ms",
        seed=9,
        options={"hot": 2, "mode": "x"},
        checkpoint=tmp_path / "ck",
        output=tmp_path / "o",
        sink_format="json",
    )


def test_a_table_takes_the_output_in_place_of_a_directory(
    engine: FakeEngine, invoke: Invoke, tmp_path: Path
) -> None:
    done = invoke(*run_args(tmp_path, "--table", "lake.db.t", "--format", "iceberg"))
    assert done.exit_code == 0, done.output
    assert engine.scenario is not None
    assert (engine.scenario.table, engine.scenario.sink_format) == ("lake.db.t", "iceberg")
    done = invoke(*run_args(tmp_path, "--table", "t", "--out", str(tmp_path / "o")))
    assert done.exit_code == 2
    assert "leave --table or --out out" in done.stderr


def test_json_is_exactly_one_object(engine: FakeEngine, invoke: Invoke, tmp_path: Path) -> None:
    done = invoke(*run_args(tmp_path, "--json", "--verify"))
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert result["verified"] is True
    assert "event: started" in done.stderr


def test_a_failed_run_exits_with_1(invoke: Invoke, engine: FakeEngine, tmp_path: Path) -> None:
    engine._query["fails_after"] = 2
    done = invoke(*run_args(tmp_path, "--json"))
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["kind"] == "EngineError"
    assert "headgate: query" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "more",
    [
        ["--duration", "60"],
        ["--scale-at", "20s"],
        ["--scale-at", "20=4"],
        ["--scale-at", "9s=4"],
        ["--slots", "0"],
        ["--option", "hot"],
        ["--budget", "0 s"],
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(
    invoke: Invoke, engine: FakeEngine, tmp_path: Path, more: list[str]
) -> None:
    done = invoke(*run_args(tmp_path, *more))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("headgate: ")
    assert done.stderr.count("\n") == 1
    assert engine.query is None


@pytest.mark.parametrize("kind", [ConfigError, UnsupportedQuery, CheckpointError])
def test_what_headgate_refuses_exits_with_2(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Exception]
) -> None:
    def refuse(*args: object) -> dict[str, Any]:
        raise kind("it does not fit; use another.")

    monkeypatch.setattr(scenarios, "run_scenario", refuse)
    done = invoke(*run_args(tmp_path))
    assert (done.exit_code, done.stderr) == (2, "headgate: it does not fit; use another.\n")


def test_answers_that_differ_exit_with_3(
    invoke: Invoke, engine: FakeEngine, tmp_path: Path
) -> None:
    engine._verification = DIFFERS
    done = invoke(*run_args(tmp_path, "--verify"))
    assert done.exit_code == 3
    assert "NO: 3 missing" in done.stdout
    # Without --verify nobody compared.
    assert invoke(*run_args(tmp_path / "b")).exit_code == 0


def test_a_missed_slo_exits_with_4(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "run_scenario", lambda *_: {"slo_met": False})
    assert invoke(*run_args(tmp_path, "--json")).exit_code == 4


def test_answers_that_differ_outweigh_a_missed_slo() -> None:
    assert answer.exit_code({"verified": False, "slo_met": False}) == 3
    assert answer.exit_code({"verified": None, "slo_met": True}) == 0


def test_unexpected_errors_exit_with_1_and_name_their_kind(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def break_down(*args: object) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(scenarios, "run_scenario", break_down)
    done = invoke(*run_args(tmp_path))
    assert (done.exit_code, done.stderr) == (1, "headgate: ZeroDivisionError: division by zero\n")
    assert "Traceback" in invoke(*run_args(tmp_path, "--debug")).stderr


def test_a_second_interrupt_exits_with_130(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*args: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenarios, "run_scenario", interrupt)
    assert invoke(*run_args(tmp_path)).exit_code == 130


def test_json_that_is_not_finite_is_a_failure_not_bad_json(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "run_scenario", lambda *_: {"x": float("nan")})
    done = invoke(*run_args(tmp_path, "--json"))
    assert done.exit_code == 1
    assert "error" in json.loads(done.stdout)


def test_sparks_greetings_and_its_daemons_last_words_are_dropped() -> None:
    passed: list[bytes] = []
    noise = NoiseFilter(passed.append)
    said = """\
WARNING: Using incubator modules: jdk.incubator.vector
26/11/21 13:18:48 WARN NativeCodeLoader: Unable to load native-hadoop library
26/11/21 13:18:48 WARN TaskSetManager: Lost task 0.0
Traceback (most recent call last):
  File "pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
Traceback (most recent call last):
  File "mine.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
Traceback (most recent call last):
  File "pyspark.zip/pyspark/daemon.py", line 95, in worker
"""
    for line in said.splitlines(keepends=True):
        noise.line(line.encode())
    noise.flush()
    lines = said.splitlines(keepends=True)
    assert b"".join(passed).decode() == "".join(lines[2:3] + lines[6:])


NOISY = """
import os, subprocess, sys
from headgate import scenario
from headgate.cli import main

failing = sys.argv[-1] == "fail"
late = []

def run(it, on_progress):
    print("python noise")
    os.write(1, b"descriptor noise\\n")
    subprocess.run([sys.executable, "-c", "print('child noise')"])
    # Outlives the redirection, as the JVM does: it must have inherited stderr.
    code = "import sys; sys.stdin.read(); print('late noise')"
    late.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))
    if failing:
        raise RuntimeError("boom")
    return {"verified": True}

scenario.run_scenario = run
sys.argv = ["headgate", "run", "nexmark-q5", "--json"]
try:
    main()
finally:
    late[0].communicate()
"""


@pytest.mark.parametrize(("how", "code"), [("work", 0), ("fail", 1)])
def test_nothing_but_json_reaches_stdout_whoever_writes(how: str, code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", NOISY, how], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.count("\n") == 1
    json.loads(ran.stdout)
    # What comes after the redirection may be lost with the process, but not reach stdout either.
    for noise in ("python", "descriptor", "child"):
        assert f"{noise} noise" in ran.stderr


def checkpoint(tmp_path: Path) -> Path:
    runs.journal(tmp_path / "ck" / "headgate" / "journal.jsonl", runs.scaled_run())
    return tmp_path / "ck"


def test_status_of_a_dead_job_draws_it(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("status", str(checkpoint(tmp_path)))
    assert done.exit_code == 0, done.output
    assert "silent for" in done.stdout
    assert "2→4 at 12 s (+18 ms ± 20)" in done.stdout
    assert "\x1b" not in done.stdout


def test_status_as_json_is_the_summary(invoke: Invoke, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    result = json.loads(invoke("status", str(path), "--json").stdout)
    assert result["slots_seen"] == [2, 4, 3]
    assert result["checkpoint"] == str(path)


def test_status_writes_a_picture(invoke: Invoke, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    done = invoke("status", str(checkpoint(tmp_path)), "--svg", str(picture))
    assert picture.read_text().startswith("<svg")
    assert f"picture written to {picture}" in done.stdout


def test_status_without_a_journal_exits_with_2(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("status", str(tmp_path), "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["kind"] == "CheckpointError"


def test_verify_takes_what_the_run_recorded(
    invoke: Invoke, engine: FakeEngine, tmp_path: Path
) -> None:
    it = scenarios.Scenario("nexmark-q5", checkpoint=tmp_path / "ck", seed=4).placed()
    (tmp_path / "ck").mkdir()
    it.record()
    done = invoke("verify", str(tmp_path / "ck"))
    assert (done.exit_code, "yes: 900 rows" in done.stdout) == (0, True)
    assert engine.scenario is not None
    assert (engine.scenario.output, engine.scenario.seed) == (it.output, 4)
    engine._verification = DIFFERS
    done = invoke("verify", str(tmp_path / "ck"), "sdsc", "--json", "--option", "speed=2")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["missing"] == 3
    assert engine.scenario.options == {"speed": 2}


def test_explain_prints_the_engines_words(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scenarios,
        "explain_workload",
        lambda *words, real_time: " ".join(map(str, [*words, real_time])),
    )
    given = ("--option", "n=1", "--conf", "spark.x=y", "--packages", "a:b:1,c:d:2")
    conf = {"spark.x": "y", "spark.jars.packages": "a:b:1,c:d:2"}
    more = (
        "--output-mode",
        "complete",
        "--memory-max",
        "5 MB",
        "--checkpoint",
        "/ck",
        "--real-time",
    )
    done = invoke("explain", "a:b", *given, *more)
    assert done.stdout == f"a:b {{'n': 1}} {conf} complete 5 MB /ck True\n"
    assert done.exit_code == 0


def test_explain_exits_with_2_on_a_refusal(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "explain_workload", lambda *_, **__: "not elastic   because")
    assert invoke("explain", "a:b").exit_code == 2


def test_a_damaged_checkpoint_exits_with_1(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = checkpoints.of_two_steps(tmp_path / "ck")
    done = invoke("inspect", str(path), "--verify")
    assert (done.exit_code, "sound      yes (every file was read)" in done.stdout) == (0, True)
    manifest = max((path / "headgate" / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes()[:-9])
    done = invoke("inspect", str(path), "--json")
    assert (done.exit_code, json.loads(done.stdout)["sound"]) == (1, False)
    assert "problem    " in invoke("inspect", str(path)).stdout


def test_inspecting_what_is_no_checkpoint_exits_with_2(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("inspect", str(tmp_path))
    assert (done.exit_code, "is not a checkpoint of headgate" in done.stderr) == (2, True)
    assert "does not exist" in invoke("inspect", str(tmp_path / "none")).stderr


def test_unknown_commands_and_options_exit_with_2(invoke: Invoke) -> None:
    for args in (["bench", "nothing"], ["run"], ["run", "q", "--nothing"], ["nothing"]):
        done = invoke(*args)
        assert (done.exit_code, done.stdout) == (2, "")


def test_help_names_every_exit_code(invoke: Invoke) -> None:
    for args in (["--help"], ["run", "--help"], ["verify", "--help"]):
        text = " ".join(invoke(*args).stdout.split())
        for code in ("0 ok", "1 the run failed", "2 bad input", "3 the answers", "4 the SLO"):
            assert code in text


def test_version_prints_one_line(invoke: Invoke) -> None:
    assert invoke("version").stdout.count("\n") == 1


def test_the_command_line_starts_without_spark() -> None:
    code = "import sys, headgate.cli; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_changes_are_sorted_by_time() -> None:
    assert parse_scale_at(["40s=3", "0.5 min = 4"]) == ((30.0, 4), (40.0, 3))


@pytest.mark.parametrize("text", ["20s", "20s=", "20s=x", "20s=-1", "=4"])
def test_a_change_that_is_not_time_and_slots_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_scale_at([text])


def test_options_become_what_they_look_like() -> None:
    found = parse_options(["a=1", "b=0.5", "c=true", "d=x=y", "e=[1]", "f="])
    assert found == {"a": 1, "b": 0.5, "c": True, "d": "x=y", "e": "[1]", "f": ""}


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a b=1"], ["a=1", "a=2"]])
def test_an_option_that_is_malformed_or_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_options(texts)


def test_engine_errors_are_failures_of_the_run() -> None:
    assert answer.exit_code(AGREES) == 0
    assert answer.error_code(EngineError("x")) == 1


def test_every_command_and_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"## headgate {name}" in page
        section = re.split(rf"## headgate {name}\b", page)[1].split("\n## ")[0]
        for parameter in command.params:
            for option in (o for o in parameter.opts if o.startswith("--")):
                assert option in section or option in {"--debug", "--help"}, (name, option)


def test_an_extension_that_is_broken_ends_no_other_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:register", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [broken])
    app = GatedTyper()
    extensions.load(app)
    assert {command.name for command in app.registered_commands} == {"figure", "bench", "demo"}
    assert "commands of no_such_module:register cannot be loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "install"), [("bench", "./demo ./lab"), ("figure", "./demo ./lab"), ("demo", "./demo")]
)
def test_a_command_of_a_distribution_that_is_not_there_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, install: str
) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda group: [])
    app = GatedTyper()
    extensions.load(app)
    for words in ((), ("latency", "--json", "--count", "3")):
        done = CliRunner().invoke(app, [name, *words])
        assert done.exit_code == 2
        assert f"headgate {name} is in " in done.output
        assert done.output.rstrip('"}\n').endswith(f"pip install {install}")
