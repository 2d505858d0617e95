"""A run of which somebody else has removed a part already is removed all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.tables.runs import open_run


@pytest.mark.parametrize("gone", ["nothing", "the lock", "all"])
def test_a_run_ends_whatever_is_gone_already(gone: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run = open_run(tmp_path)
    (run.path / "operator").mkdir()
    (run.path / "file").touch()
    if gone != "nothing":
        (run.path / "lock").unlink()
    if gone == "all":
        (run.path / "operator").rmdir()
        (run.path / "file").unlink()
        run.path.rmdir()
    run.end()
    assert run.ended
    assert not run.path.exists()
    run.close()
    assert list(tmp_path.iterdir()) == []
