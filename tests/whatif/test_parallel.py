from __future__ import annotations

import math

import pytest

from headgate.whatif import parallel
from headgate.whatif.parallel import run_all


@pytest.mark.parametrize("cores", [1, 2])
def test_results_come_in_the_order_of_the_items_and_progress_goes_to_stderr(
    cores: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: cores)
    assert run_all(math.sqrt, [9.0, 4.0, 1.0]) == [3.0, 2.0, 1.0]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1].startswith("3 of 3 runs, ")


@pytest.mark.parametrize("cores", [1, 2])
def test_an_error_in_a_run_is_raised(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: cores)
    with pytest.raises(ValueError, match=r"expected a nonnegative|math domain"):
        run_all(math.sqrt, [1.0, -1.0])
