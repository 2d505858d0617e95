"""Addresses at which nobody listens: how long they are tried, on a clock of the test's."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from headgate.core import listening
from headgate.core.listening import REFUSED_S, not_listening

ONE, OTHER = ("one", 1), ("other", 2)
REFUSED, SILENT = ConnectionRefusedError(111, "Connection refused"), TimeoutError("timed out")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
NOT_YET = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What hosts answer with, and the time that tries have taken."""
    made = SimpleNamespace(answers={}, now_s=0.0, ready_s=1e9)

    def connected(address: tuple[str, int], timeout: float) -> object:
        if made.now_s < made.ready_s:
            raise made.answers[address[0]]
        return SimpleNamespace(close=lambda: None)

    def slept(seconds: float) -> None:
        made.now_s += seconds

    monkeypatch.setattr(listening.socket, "create_connection", connected)
    clock = SimpleNamespace(monotonic=lambda: made.now_s, sleep=slept)
    monkeypatch.setattr(listening, "time", clock)
    return made


@pytest.mark.parametrize(
    ("answers", "tried_s"),
    [
        ((UNKNOWN, UNKNOWN), 0.0),
        ((REFUSED, REFUSED), REFUSED_S),
        ((NOT_YET, REFUSED), REFUSED_S),
        ((REFUSED, UNKNOWN), REFUSED_S),
        ((SILENT, REFUSED), 10.0),
        ((OverflowError("port"), UNKNOWN), 0.0),
    ],
)
def test_an_address_that_refuses_is_tried_for_a_second_and_a_silent_one_longer(
    network: SimpleNamespace, answers: tuple[Exception, Exception], tried_s: float
) -> None:
    network.answers = dict(zip(("one", "other"), answers, strict=True))
    assert not_listening([ONE, OTHER], 10.0) is answers[1]
    assert network.now_s == pytest.approx(tried_s, abs=0.11)


def test_a_server_that_starts_a_little_later_is_waited_for(network: SimpleNamespace) -> None:
    network.answers, network.ready_s = {"one": REFUSED}, REFUSED_S / 2
    assert not_listening([ONE], 10.0) is None
