"""Each option of each command: what the room below is called with, and what is said, as recorded.

The command lines are made from the options that there are, so a new option is in the recording by itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headgate import scenario as scenarios
from headgate.cli import answer as answers
from headgate.cli import app, cluster, commands, fleet, metrics, simulate
from headgate.cli.simulate import result_lines, table
from headgate.report import plot
from headgate.scenario import Scenario, requests

Recorded = Callable[[str, Iterable[str]], None]

ASKED = {"act": "scale", "by": "ann", "detail": "2 to 3", "arguments": {}, "id": "1", "at_ms": 5}
RUN = {"slots": 2.5, "success": 0.99, "changes": {"out": 2, "in": 1}}
ANSWERS: dict[str, Any] = {
    "carry_checkpoint": {
        "checkpoint": "/there", "batch": 7, "watermark_ms": 5, "operators": [{"id": "a", "entries": 9}],
    },
    "ask": ASKED,
    "stop": ASKED,
    "check_fleet": {"file": "f", "slots": 3, "rows": [{"job": "a", "slots": 2, "of": None}]},
    "run_fleet_file": {
        "file": "f", "utility": 2.5, "none": None, "touched": {"a": 1},
        "jobs": {
            "a": {"state": "running", "utility": [[1.0, None], [2.0, 5.0]], "utility_max": 10.0,
                  "met": True, "slots": {"x": 2, "y": 1}},
            "b": {"state": "waiting", "utility": []},
        },
        "rows": [{"time_s": 1.0, "action": "out"}],
    },
    "fleet_status": {"slots": 3, "jobs": [{"job": "a", "met": None}], "rows": []},
    "explain_workload": "elastic\nin two lines",
    "settings_not_taken": ["spark.a"],
    "verify_scenario": {"verified": True, "rows_compared": 3, "missing": 0, "extra": 0},
    "run_scenario": {},
    "inspect": {"sound": False},
    "check_contract": {
        "contract": {"members": 9, "minor": "4.3"}, "problems": ["a is gone"], "sound": False,
    },
    "run": {
        "executors": [
            {"executor": "1", "host": "h", "arena_free_bytes": 2048, "arena": "/dev/shm",
             "disk_free_bytes": 1 << 30, "disk": "/tmp"},
            {"executor": "2", "host": "h", "arena_free_bytes": 0, "arena": None,
             "disk_free_bytes": 5, "disk": "/tmp"},
        ],
        "problems": ["no room"], "advice": ["buy some"], "unchecked": ["the rest"], "sound": True,
    },
    "replay": {
        "real": RUN, "model": RUN, "what_if": None,
        "error": {"success_points": -0.5, "slots_percent": 3.25},
        "oracle": {"oracle_slots": 1.5, "constant_slots": None},
    },
    "read_log": ("arrivals", "records", ("times are seconds", "no keys")),
    "WhatIf": "what if",
    "simulate": {"slo": "s", "rows": [{"policy": "a", "slots": 2.123456}], "advice": "take a"},
    "mode": "the mode",
    "engine": "the engine",
    "draw": "the picture",
    "save": None,
    "check_target": None,
    "TraceColumns": "columns",
    "collect": types.SimpleNamespace(
        text=lambda: "a 1\nb 2\n", broken=["c is broken"],
        serve=lambda host, port: types.SimpleNamespace(port=port, close=lambda: None),
    ),
    "Shelf": "the shelf",
    "serve": None,
}  # fmt: skip
"""What each function below answers."""

WORDS = {
    "duration": "90s", "scale_at": "20s=4", "budget": "800 ms", "slo": "mean < 1 s over 1 s",
    "policy": "static(3)", "migration": "fluid", "floor": "0 s", "memory_max": "500 MB",
    "out": "{}/out.svg", "sink_format": "csv", "table": "t", "option": "n=1", "output_mode": "update",
    "arrival": "at", "conf": "spark.a=b", "packages": "g:n:1", "rate": "25", "for_": "2h",
    "hold": "10min", "since": "1h", "wait": "3 s", "master": "local[2]", "state": "2 GB",
    "listen": "127.0.0.1:0", "kill_host_at": "5 s", "interval": "2 s", "at": "+01:30",
    "checkpoint": "{}/ck", "like": "{}/like", "svg": "{}/picture.svg", "work": "{}/work",
    "plain": "{}/plain", "places": "{}/a", "query": "mine:query", "file": "{}/fleet.toml",
    "journal": "{}/fleet.jsonl", "trace": "{}/log.csv", "workload": "nexmark-q5", "slots": "3",
    "slots_max": "9", "key_groups": "64", "seed": "7", "speed": "2.5", "slot_rate": "100",
    "service_rate": "50", "cores": "2", "to_epoch": "4", "mode": "micro-batch", "time_unit": "ms",
}  # fmt: skip
"""A value of each option; of one that is not here its own name."""

LEFT_OUT = {
    "why",
    "diagnose",
    "top",
    "status",
    "version",
    "rules",
    "board",
    "figure",
    "bench",
    "demo",
}
"""Commands that read a journal, whose recordings lie with the views, and those of other packages."""


def commands_below(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for each, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(command, f"{name}{each} ")
        elif command.callback.__module__.startswith("headgate."):
            yield name + each, command


ALL = dict(commands_below(get_command(app)))
COMMANDS = {name: command for name, command in ALL.items() if name not in LEFT_OUT}


class Below:
    """The functions below the commands: notes each call, and answers."""

    def __init__(self, place: Path) -> None:
        self.lines: list[str] = []
        self._place = str(place)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in ANSWERS:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = [self.text(value) for value in args]
            given += [f"{key}={self.text(value)}" for key, value in kwargs.items()]
            self.lines.append(f"    {name}({', '.join(given)})")
            answer = ANSWERS[name]
            return dict(answer) if isinstance(answer, dict) else answer

        return call

    @contextmanager
    def display(self, console: Any, *, planned_s: float) -> Iterator[Any]:
        self.lines.append(f"    a display for {planned_s:g} s, on stderr {console.stderr}")
        yield types.SimpleNamespace(update=lambda journal: None)

    def text(self, value: Any) -> str:
        if isinstance(value, Scenario):
            default = Scenario(value.workload)
            names = [field.name for field in dataclasses.fields(Scenario)]
            changed = [n for n in names if getattr(value, n) != getattr(default, n)]
            given = [f"{n}={self.text(getattr(value, n))}" for n in changed]
            return f"Scenario({', '.join([value.workload, *given])})"
        if callable(value) and not isinstance(value, type):
            return "a function"
        return repr(value).replace(self._place, "{}")


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Below:
    made = Below(tmp_path)
    for name in ANSWERS:
        if hasattr(scenarios, name):
            monkeypatch.setattr(scenarios, name, getattr(made, name))
    monkeypatch.setattr(answers, "quiet_stderr", lambda wait_s: nullcontext())  # it takes its time
    monkeypatch.setattr(fleet, "fleet_status", made.fleet_status)
    monkeypatch.setattr(cluster, "engine_module", lambda name: made)
    fake = types.SimpleNamespace(import_module=lambda name: made)
    monkeypatch.setattr(simulate, "importlib", fake)
    monkeypatch.setattr(plot, "check_target", made.check_target)
    monkeypatch.setattr(plot, "save", made.save)
    monkeypatch.setattr(metrics, "collect", made.collect)
    monkeypatch.setattr(metrics, "_page", lambda places: (made.Shelf(places), made.serve))
    monkeypatch.setattr(requests, "time", types.SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(metrics.secrets, "token_urlsafe", lambda size: f"token-of-{size}-bytes")
    monkeypatch.setattr(commands, "Display", made.display)
    monkeypatch.setattr(commands, "finish_lines", lambda result: ["finished"])
    monkeypatch.setattr(commands, "inspection_lines", lambda result: ["inspected"])

    class Event:
        def wait(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(metrics, "threading", types.SimpleNamespace(Event=Event))
    (tmp_path / "ck").mkdir()
    return made


def process() -> tuple[Any, ...]:
    """What a command must leave as it was."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return (*handlers, os.getcwd(), dict(os.environ), sorted(os.listdir("/proc/self/fd")))


def lines_of(command: Any, place: Path) -> Iterator[list[str]]:
    """Yield command lines: the least there can be, all at once but flags, and each option alone."""
    needed, options = [], []
    for option in command.params:
        word = WORDS.get(option.name, option.name).format(place)
        if option.param_type_name == "argument":
            needed += [word] if option.required or option.name in ("workload", "places") else []
        elif option.name == "help":
            continue
        elif getattr(option, "is_flag", False):
            options.append([option.opts[0]])
        elif option.required:
            needed += [option.opts[0], word]
        else:
            options.append([option.opts[0], word])
    yield needed
    for option in options:
        if option[0] not in ("--json", "--debug"):
            yield [*needed, *option]


def options_of(command: Any) -> Iterator[str]:
    """Yield what there is to type: each option with its ends, its default and how it is shown."""
    for option in command.params:
        kind = getattr(option.type_descriptor.annotation, "__name__", "")
        parser = getattr(option.type_descriptor.parameter_info, "parser", None)
        said = {"kind": kind, "parser": getattr(parser, "__name__", "")} | {
            name: getattr(option, name, None)
            for name in (
                "default", "min", "max", "metavar", "show_default", "required", "multiple", "is_flag",
                "hidden",
            )
        }  # fmt: skip
        plain = {key: value for key, value in said.items() if value not in (None, "", False, [])}
        yield f"  {' '.join([*option.opts, *option.secondary_opts])}: {plain}"
    yield f"  {command.epilog and 'with exit codes'} {command.context_settings}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_passes_on_what_was_typed(
    name: str, below: Below, tmp_path: Path, recorded: Recorded
) -> None:
    lines = list(options_of(COMMANDS[name]))
    for words in lines_of(COMMANDS[name], tmp_path):
        shown = " ".join(words).replace(str(tmp_path), "{}")
        lines.append(f"headgate {name} {shown}")
        below.lines.clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another test may have left its own
        before = process()
        done = CliRunner().invoke(app, [*name.split(), *words])
        assert process() == before, words
        lines += below.lines
        said = [f"    | {line}" for line in done.output.splitlines()]
        lines += [line.replace(str(tmp_path), "{}").rstrip() for line in said]
        lines.append(f"    exit {done.exit_code}")
    recorded(f"passed-on-{name.replace(' ', '-')}", lines)


def test_options_of_commands_that_are_not_called_here(recorded: Recorded) -> None:
    lines = []
    for name in sorted(ALL.keys() - COMMANDS.keys()):
        lines += [name, *options_of(ALL[name])]
    recorded("options", lines)
    assert {"figure", "bench", "demo"} <= get_command(app).commands.keys(), "of other packages"


def test_a_path_that_cannot_be_is_refused_wherever_it_is_typed(
    below: Below, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, command in ALL.items():
        for option in command.params:
            if "Path" not in str(getattr(option.type_descriptor, "annotation", "")):
                continue
            with monkeypatch.context() as patch:
                patch.setitem(WORDS, option.name, "x" * 300)
                lines = [words for words in lines_of(command, tmp_path) if "x" * 300 in words]
            done = CliRunner().invoke(app, [*name.split(), *lines[-1]])
            said = (name, option.name, done.exit_code, done.stderr)
            assert done.exit_code == answers.BAD_INPUT, said
            assert "is longer than a path can be; name another." in done.stderr, said
    assert not below.lines


def test_a_result_is_one_object_with_json(below: Below, tmp_path: Path) -> None:
    for name, command in COMMANDS.items():
        if "--json" in [opt for option in command.params for opt in option.opts]:
            done = CliRunner().invoke(
                app, [*name.split(), *next(lines_of(command, tmp_path)), "--json"]
            )
            assert isinstance(json.loads(done.stdout), dict), name
            if name == "run":
                assert "    a display for 60 s, on stderr True" in below.lines


def test_a_table_has_numbers_to_the_right_and_texts_to_the_left() -> None:
    rows = [{"name": "a", "n": 1.0, "none": None}, {"name": "bbb", "n": 123456.7, "none": 2}]
    assert table(rows) == [
        "name           n  none",
        "a              1     -",
        "bbb   1.2346e+05     2",
    ]
    assert table([]) == []
    shown = result_lines({"a": 1, "paper": [2], "left": {"out": 1}, "bb": "x", "rows": rows[:1]})
    assert shown == ["a      1", "paper  [2]", "bb     x", "name  n  none", "a     1     -"]
