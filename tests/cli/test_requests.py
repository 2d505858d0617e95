"""A request to a running query is looked after ten times a second, for as long as was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import CommandFiles
from headgate.core.errors import ConfigError, EngineError
from headgate.scenario import requests


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Checkpoint(tmp_path).open({"key_groups": 2})
    return tmp_path


@pytest.mark.parametrize(("wait_s", "looks"), [(0.0, 1), (0.04, 1), (0.1, 1), (0.2, 2), (3.0, 30)])
def test_an_answer_is_looked_for_ten_times_a_second(place: Path, wait_s: float, looks: int) -> None:
    slept: list[float] = []
    with pytest.raises(EngineError) as refused:
        requests.ask(place, "scale", reason="why", wait_s=wait_s, sleep=slept.append)
    assert slept == [0.1] * looks
    assert str(refused.value) == (
        f"no query answered within {wait_s:g} s; a query that starts on {place} will scale at its "
        "first batch; headgate status says whether a query runs."
    )


def test_an_answer_ends_the_wait(place: Path) -> None:
    files = CommandFiles(place / "headgate")
    slept: list[float] = []

    def answer(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (request,) = files.pending()
            files.write_answer(request.id, None, "4 slots")

    found = requests.ask(place, "scale", arguments={"slots": 4}, sleep=answer)
    assert len(slept) == 3
    assert (found["act"], found["arguments"]) == ("scale", {"slots": 4})
    assert found["detail"] == "4 slots"


def test_nobody_waits_for_more_than_a_day(place: Path) -> None:
    requests._check_wait(86_400.0)
    for act in (
        lambda: requests.ask(place, "scale", wait_s=86_401.0),
        lambda: requests.stop(place, wait_s=86_401.0),
    ):
        with pytest.raises(
            ConfigError, match="a wait of 86401 s is out of range; use a day at most"
        ):
            act()
    assert CommandFiles(place / "headgate").pending() == []
