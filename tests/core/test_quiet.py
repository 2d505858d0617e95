"""What comes to stderr within a quiet block, and that everything is as before behind it."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from headgate.core.quiet import quiet_stderr
from headgate_lab.testing.descriptors import descriptors

NOISE = b'Setting default log level to "WARN".\n'


@pytest.mark.parametrize("quiet", [None, "1", "0"])
def test_greetings_stay_out_and_all_else_passes_in_its_order(
    quiet: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADGATE_QUIET", raising=False)
    if quiet is not None:
        monkeypatch.setenv("HEADGATE_QUIET", quiet)
    buffered = open(2, "w", closefd=False)
    monkeypatch.setattr(sys, "stderr", buffered)
    print("before", file=sys.stderr)
    before, threads = descriptors(), threading.enumerate()
    with quiet_stderr(wait_s=20.0):
        os.write(2, b"first\n" + NOISE + b"Traceback (most recent call last):\n  a\nE: b\n")
        print(NOISE.decode() + "printed", file=sys.stderr)
    buffered.flush()
    os.write(2, NOISE + b"behind\n")
    assert descriptors() - before == set()
    assert set(threading.enumerate()) <= set(threads)
    lines = capfd.readouterr().err.splitlines()
    shown = [line for line in lines if not line.startswith("Setting")]
    kept_back = ["first", "Traceback (most recent call last):", "  a", "E: b"]
    if quiet == "0":
        assert shown == [*kept_back, "before", "printed", "behind"], "as the program wrote"
    else:
        assert shown == ["before", *kept_back, "printed", "behind"]
    assert len(lines) - len(shown) == (3 if quiet == "0" else 1)


def test_an_error_in_the_block_gives_stderr_back(capfd: pytest.CaptureFixture[str]) -> None:
    before = os.fstat(2).st_ino

    def fail() -> None:
        with quiet_stderr(wait_s=20.0):
            os.write(2, NOISE + b"within\n")
            msg = "odd"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="odd"):
        fail()
    assert os.fstat(2).st_ino == before
    lines = capfd.readouterr().err.splitlines()
    assert "within" in lines
    assert not [line for line in lines if line in NOISE.decode().splitlines()]
