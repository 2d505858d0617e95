from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from headgate.core import jit as jit_module
from headgate.core.jit import jit
from headgate.tables import kernels
from headgate.tables.heap import warm

SCRIPT = """
import hashlib, sys
import numpy as np
from headgate.tables import kernels
from headgate.tables.heap import HeapStore
from headgate_lab.testing.stores import LAYOUT, History, apply_changes
hash_ = kernels.hash_words(np.array([[-1, 2**62], [0, -(2**63)], [7, 7]], dtype=np.int64))
store, history = HeapStore(LAYOUT), History()
table = store.acquire(0, history.token, history.chain)
table.begin()
apply_changes(table, [(f"string {i % 40}" * (i % 5), i, i % 4) for i in range(400)])
digest = hashlib.sha256(table.rows.tobytes() + table.strings()[1].tobytes()).hexdigest()
print(hash_.tolist(), digest, "numba" in sys.modules)
"""


def _output(jit_on: str) -> list[str]:
    environment = {**os.environ, "HEADGATE_JIT": jit_on}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.rsplit(maxsplit=1)


def test_both_forms_give_the_same_table_byte_for_byte():
    compiled, plain = _output("1"), _output("0")
    assert compiled[0] == plain[0]
    assert (compiled[1], plain[1]) == ("True", "False")


def test_hashes_spread_over_the_low_bits():
    keys = np.stack((np.arange(4096), np.zeros(4096, dtype=np.int64)), axis=1)
    slots = np.unique(kernels.hash_words(keys) & 4095)
    # 4096 * (1 - 1 / e) for a random function.
    assert 2450 < len(slots) < 2730


@pytest.mark.jit
def test_a_cache_that_cannot_be_written_moves_to_a_private_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    calls = []

    def njit(**options: object) -> object:
        def decorate(function: object) -> object:
            calls.append(os.environ.get("NUMBA_CACHE_DIR"))
            if len(calls) == 1:
                msg = "cannot cache function: no locator available"
                raise RuntimeError(msg)
            return function

        return decorate

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")

    def function() -> int:
        return 1

    assert jit(function) is function
    chosen = Path(calls[1])
    assert chosen.parent == tmp_path
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700


def test_a_cache_directory_of_others_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = Path(jit_module._private_cache())
    usual.chmod(0o755)
    assert Path(jit_module._private_cache()) != usual


@pytest.mark.jit
def test_after_warming_no_kernel_is_compiled_for_what_tables_ask() -> None:
    """In a process of its own: here other tests have compiled them."""
    script = """
from headgate.tables import kernels
from headgate.tables.heap import HeapStore, warm
from headgate.tables.ports import EMPTY_TOKEN
from headgate_lab.testing.stores import LAYOUT, apply_changes, fresh_token

# of those with an underscore one is called by others than kernels, which have them compiled in
compiled = {n: k for n, k in vars(kernels).items()
            if hasattr(k, "signatures") and (n[0] != "_" or n == "_place_strings")}
warm()
before = {name: list(kernel.signatures) for name, kernel in compiled.items()}
print(len(before), [name for name, signatures in before.items() if not signatures])
store = HeapStore(LAYOUT)
table = store.acquire(0, EMPTY_TOKEN, lambda token: [])
for step in range(3):
    table.begin()
    apply_changes(table, [(f"{step}-{n}", n, n + step) for n in range(200)])
    table.delete(table.live()[:5])
    table.section(fresh_token(), full=step == 1)
    table.compact((1,)) if step == 1 else table.least(1)
    table.commit(fresh_token())
    kernels.bounds(table.rows)
table.roll_back()
print([name for name, kernel in compiled.items() if list(kernel.signatures) != before[name]])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.endswith(" []")
    assert int(first.split()[0]) == 12
    assert second == "[]"


def test_warming_calls_every_kernel_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[str] = set()

    def noting(name: str, kernel: Any) -> Any:
        return lambda *given: (called.add(name), kernel(*given))[1]

    every = {
        name
        for name, kernel in vars(kernels).items()
        if name.islower() and name[0] != "_" and callable(kernel)
        if kernel.__module__ == kernels.__name__
    }
    for name in every:
        monkeypatch.setattr(kernels, name, noting(name, getattr(kernels, name)))
    warm()
    assert called == every
