"""How kernels are compiled, and where their code is kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numba
import pytest

from headgate.core import jit as jit_module
from headgate.core.jit import jit, jit_enabled


def plain() -> int:
    return 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What numba is asked for, with the directory that it is told."""
    found: list[Any] = []

    def njit(**options: Any) -> Any:
        found.append((options, os.environ.get("NUMBA_CACHE_DIR")))
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return found


def test_kernels_are_compiled_with_a_cache_and_give_others_the_lock(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, compiled in (("0", False), ("1", True), ("", True), (None, True)):
        asked.clear()
        if value is None:
            monkeypatch.delenv("HEADGATE_JIT")
        else:
            monkeypatch.setenv("HEADGATE_JIT", value)
        assert jit_enabled() is compiled
        assert jit(plain) is plain
        assert asked == [({"cache": True, "nogil": True}, None)] * compiled


def test_a_cache_that_numba_may_not_write_is_a_private_one(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_JIT", "1")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    real, reloads = numba.njit, []

    def once(**options: Any) -> Any:
        if not asked:
            real(**options)
            msg = "no locator available"
            raise RuntimeError(msg)
        return real(**options)

    monkeypatch.setattr(numba, "njit", once)
    monkeypatch.setattr(numba.config, "reload_config", lambda: reloads.append(1))
    assert jit(plain) is plain
    place = Path(tempfile.gettempdir()) / f"headgate-numba-{os.geteuid()}"
    assert asked == [
        ({"cache": True, "nogil": True}, ""),
        ({"cache": True, "nogil": True}, str(place)),
    ]
    assert reloads == [1]


@pytest.mark.parametrize(
    "what", ["nothing", "mine", "open", "writable", "a file", "a link", "another's"]
)
def test_only_a_directory_of_this_user_alone_keeps_code(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = tmp_path / f"headgate-numba-{os.geteuid()}"
    if what in ("mine", "open", "writable", "another's"):
        usual.mkdir(mode=0o700)
        usual.chmod({"open": 0o755, "writable": 0o720}.get(what, 0o700))
    elif what == "a file":
        usual.touch(mode=0o600)
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        usual.symlink_to(tmp_path / "elsewhere")
    if what == "another's":
        uid = os.geteuid()
        calls = iter([uid, uid + 1])
        monkeypatch.setattr(jit_module.os, "geteuid", lambda: next(calls))
    found = Path(jit_module._private_cache())
    if what in ("nothing", "mine"):
        assert found == usual
    else:
        assert found != usual
        assert found.name.startswith("headgate-numba-")
    assert found.parent == tmp_path
    assert found.stat().st_mode & 0o777 == 0o700
