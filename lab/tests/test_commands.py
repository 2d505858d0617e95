"""What the laboratory adds to the command line: benchmarks and figures."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate.cli import app
from headgate.core.errors import HeadgateError
from headgate_lab import cli as laboratory

Invoke = Callable[..., Any]


@pytest.fixture
def invoke() -> Invoke:
    return lambda *args: CliRunner().invoke(app, list(args))


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    known: dict[str, Any] = {}
    real = laboratory.engine_module
    monkeypatch.setattr(laboratory, "engine_module", lambda name: known.get(name) or real(name))
    return known


def test_bench_passes_what_was_given(invoke: Invoke, modules: dict[str, Any]) -> None:
    bench = types.SimpleNamespace(run=lambda **given: {"given": given, "ratio": 4.2})
    modules["headgate_lab.bench.aggregate"] = bench
    done = invoke("bench", "aggregate", "--json", "--count", "3")
    assert json.loads(done.stdout) == {"given": {"repeats": 3}, "ratio": 4.2}
    assert "ratio  4.2" in invoke("bench", "aggregate").stdout


def test_bench_whose_answers_differ_exits_with_3(invoke: Invoke, modules: dict[str, Any]) -> None:
    modules["headgate_lab.bench.kill"] = types.SimpleNamespace(run=lambda **_: {"verified": False})
    assert invoke("bench", "kill").exit_code == 3


def test_a_benchmark_that_refuses_a_wrong_answer_exits_with_3(
    invoke: Invoke, modules: dict[str, Any]
) -> None:
    class WrongAnswer(HeadgateError):
        pass

    def run(**given: object) -> dict[str, Any]:
        raise WrongAnswer("Flink's answer is not the exact one.")

    modules["headgate_lab.bench.kill"] = types.SimpleNamespace(run=run)
    assert invoke("bench", "kill").exit_code == 3


def test_a_benchmark_that_is_not_installed_is_one_sentence(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headgate_lab.bench.kill", None)
    done = invoke("bench", "kill")
    assert done.exit_code == 2
    assert done.stderr.startswith("headgate: this installation cannot load headgate_lab.bench")


def test_figures_are_listed(invoke: Invoke) -> None:
    done = invoke("figure", "--list")
    assert done.exit_code == 0
    assert done.stdout.startswith("streamswitch-5 ")


def test_a_figure_without_a_name_is_a_question(invoke: Invoke) -> None:
    done = invoke("figure", "--json")
    assert done.exit_code == 2
    assert "headgate figure --list" in json.loads(done.stdout)["error"]["message"]
