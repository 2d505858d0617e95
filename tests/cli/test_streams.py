"""Where a command's words go: its result to stdout, all else to stderr, on the descriptors themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import typer

from headgate.cli.answer import answer, error_code, exit_code
from headgate.cli.output import json_only
from headgate.core.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    NotReady,
    ProtocolError,
    StateError,
)
from headgate_lab.testing.descriptors import descriptors


def test_descriptor_1_is_stderr_meanwhile_and_stdout_behind(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = descriptors()
    with json_only():
        os.write(1, b"of a library\n")
        print("of the program")
    os.write(1, b"the result\n")
    print("more of it")
    said = capfd.readouterr()
    assert said.out == "the result\nmore of it\n"
    assert said.err == "of a library\nof the program\n"
    assert descriptors() - before == set()


def test_a_worker_does_not_inherit_the_descriptor_of_stdout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved: list[int] = []
    real = os.dup
    monkeypatch.setattr(os, "dup", lambda fd: saved.append(real(fd)) or saved[-1])
    with json_only():
        assert not os.get_inheritable(saved[0])


def ends(work: Callable[[], Any], *, as_json: bool = False, debug: bool = False) -> int:
    with pytest.raises(typer.Exit) as ended:
        answer(work, lambda result: [f"n is {result['n']}"], as_json=as_json, debug=debug)
    return ended.value.exit_code


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("debug", [False, True])
def test_only_debug_shows_what_spark_prints_and_where_it_failed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, as_json: bool, debug: bool
) -> None:  # fmt: skip
    monkeypatch.setenv("HEADGATE_QUIET", "")

    def work() -> dict[str, Any]:
        os.write(1, b"chatter\n")
        return {"n": 7}

    assert ends(work, as_json=as_json, debug=debug) == 0
    assert os.environ["HEADGATE_QUIET"] == ("0" if debug else "")
    said = capfd.readouterr()
    result = '{"n": 7}\n' if as_json else "n is 7\n"
    assert said.out == ("" if as_json else "chatter\n") + result
    assert ("chatter" in said.err) == as_json

    def fail() -> dict[str, Any]:
        msg = "no room"
        raise EngineError(msg)

    assert ends(fail, as_json=as_json, debug=debug) == 1
    said = capfd.readouterr()
    assert "headgate: no room\n" in said.err
    assert ("Traceback" in said.err) == debug
    failure = {"error": {"kind": "EngineError", "message": "no room"}}
    assert said.out == (json.dumps(failure) + "\n" if as_json else "")


def test_codes_of_results_and_errors() -> None:
    """A difference outweighs a failure, and a failure a missed SLO; what the user wrote is bad input."""

    class WrongAnswer(Exception):
        """As the benchmarks' own."""

    results: list[tuple[dict[str, Any], int]] = [
        ({}, 0), ({"verified": None, "sound": True, "slo_met": True, "failed": []}, 0),
        ({"slo_met": False}, 4), ({"slo_met": False, "sound": False}, 1), ({"failed": ["a"]}, 1),
        ({"verified": False, "sound": False, "slo_met": False}, 3), ({"slo_met": None}, 0),
        ({"refused": True, "verified": False}, 2), ({"refused": False, "verified": True}, 0),
    ]  # fmt: skip
    assert [exit_code(result) for result, _ in results] == [code for _, code in results]
    errors: dict[BaseException, int] = {
        KeyboardInterrupt(): 130, WrongAnswer(): 3, ConfigError("a."): 2, CheckpointError("a."): 2,
        EngineError("a."): 1, StateError("a."): 1, ProtocolError("a."): 1, NotReady("a."): 1,
        ValueError("a"): 1, SystemExit(5): 1, typer.BadParameter("a"): 2,
    }  # fmt: skip
    assert {error: error_code(error) for error in errors} == errors
