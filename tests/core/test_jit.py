"""Kernels say once when they are compiled, and nothing when they are not."""

from __future__ import annotations

import logging

import pytest

from headgate.core.jit import announce_compiling, jit

pytestmark = pytest.mark.jit


def test_compiling_is_announced_once_and_a_compiled_kernel_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import numba

    first, second = (numba.njit(eval(f"lambda a: a + {n}")) for n in (1, 2))
    with caplog.at_level(logging.WARNING, "headgate"):
        with announce_compiling():
            assert (first(1), second(1)) == (2, 3)
        assert [record.getMessage() for record in caplog.records] == [
            "headgate: compiling its kernels, once per machine and kind of query: about 30 s."
        ]
        caplog.clear()
        with announce_compiling():
            assert first(1) == 2
        assert not caplog.records
    second(1.5)  # behind the block nobody listens any more
    assert not caplog.records


def test_without_kernels_to_compile_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADGATE_JIT", "0")
    with announce_compiling():
        assert jit(abs) is abs
    assert not caplog.records
