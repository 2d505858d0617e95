"""What commands print of a result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate.cli import answer, app
from headgate.cli.answer import BAD_INPUT
from headgate.cli.simulate import _replay_lines

RUN = {"slots": 2.5, "success": 0.99, "changes": {"scale-out": 2, "balance": 1}}


def replay(**changed: Any) -> str:
    result = {
        "real": RUN,
        "model": {**RUN, "changes": {}},
        "what_if": None,
        "error": {"success_points": -1.25, "slots_percent": 3.14},
    }
    return "\n".join(_replay_lines({**result, **changed}))


def test_a_replay_shows_its_runs_side_by_side_and_how_far_the_model_was_off() -> None:
    text = replay()
    assert "2 scale-out, 1 balance" in text
    assert "none" in text
    assert "what_if" not in text
    assert "model's error: -1.25 points of success, +3.1 % of slots" in text
    assert "oracle" not in text
    assert "what_if" in replay(what_if=RUN)


def test_what_is_not_known_of_a_replay_is_said_so() -> None:
    nothing = replay(error={"success_points": None, "slots_percent": 0.0})
    assert "model's error: unknown, +0.0 % of slots" in nothing
    oracle = {"oracle_slots": 1.234, "constant_slots": 3}
    assert "an oracle would need 1.23 slots, a fixed number 3" in replay(oracle=oracle)
    assert "no fixed number is enough" in replay(oracle=oracle | {"constant_slots": None})


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("headgate", "headgate --help"),
        ("headgate scale", "headgate scale --help"),
        ("headgate demo kafka", "headgate demo kafka --help"),
    ],
)
def test_words_that_are_not_understood_name_the_help_of_their_command(
    path: str, asked: str
) -> None:
    error = SimpleNamespace(
        format_message=lambda: "No such\n option: --nope.", ctx=SimpleNamespace(command_path=path)
    )
    assert answer._usage(error) == f"No such option: --nope; {asked} lists what there is."


def test_words_without_a_command_name_the_help_of_all() -> None:
    error = SimpleNamespace(format_message=lambda: "no", ctx=None)
    assert answer._usage(error) == "no; headgate --help lists what there is."


@pytest.mark.parametrize("words", [[], ["fleet"], ["demo"]])
def test_a_group_without_a_command_shows_its_commands_and_no_error(words: list[str]) -> None:
    shown = CliRunner().invoke(app, words)
    assert shown.stdout.startswith("Usage: ")
    assert (shown.stderr, shown.exit_code) == ("", BAD_INPUT)
