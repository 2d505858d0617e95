"""Makes kernels that get tables as addresses work as plain Python, without compilation."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from headgate.tables import together


def array_at(address: int, shape: tuple[int, ...], kind: Any) -> Any:
    """Return the memory at an address as an array, as `numba.carray` does in compiled code."""
    byte_count = math.prod(shape) * np.dtype(kind).itemsize
    if byte_count == 0:
        return np.empty(shape, kind)
    return np.frombuffer((ctypes.c_uint8 * byte_count).from_address(address), kind).reshape(shape)


def serve_together(monkeypatch: Any) -> None:
    """Make `headgate.tables.together` work without a compiler; `monkeypatch` is that of pytest."""
    if not together.ENABLED:
        monkeypatch.setattr(together, "ENABLED", True)
        monkeypatch.setattr(together, "carray", array_at, raising=False)
        monkeypatch.setattr(together, "_pointer", int, raising=False)
