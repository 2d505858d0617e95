"""Maps files into memory without keeping a descriptor.

`mmap.mmap` keeps a duplicate descriptor open. With two files for each of 128 key groups per operator, a
worker would exceed the usual limit of 1,024. So this module makes the system call itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from typing import Any

import numpy as np

from headgate.core.errors import StateError
from headgate.tables.ports import U8

_PROT_READ_WRITE = 3
_MAP_SHARED = 1
_FAILED = ctypes.c_void_p(-1).value
_MADV_REMOVE = 9


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


_LIBC = _libc()


def map_file(descriptor: int, byte_count: int) -> U8:
    """Return a file's first `byte_count` bytes as a shared, writable array.

    The array stays valid after `descriptor` is closed. The memory is unmapped when nothing refers to
    the array or its views any more. Raises `StateError` if the kernel refuses, for instance because
    of RLIMIT_AS.
    """
    address = _LIBC.mmap(None, byte_count, _PROT_READ_WRITE, _MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        msg = (
            f"{byte_count} bytes of state cannot be mapped ({reason}): "
            "raise or unset spark.executor.pyspark.memory"
        )
        raise StateError(msg)
    owner = (ctypes.c_uint8 * byte_count).from_address(address)
    # NumPy keeps `owner` alive as the base of every view.
    weakref.finalize(owner, _LIBC.munmap, address, byte_count).atexit = False
    mapped: U8 = np.frombuffer(memoryview(owner), dtype=np.uint8)
    return mapped


def empty_file(mapped: U8) -> None:
    """Free the memory of a mapped file, which then reads as zeros for every process.

    On other systems than Linux, the memory is freed with the last mapping instead.
    """
    if sys.platform == "linux":
        _LIBC.madvise(mapped.ctypes.data, mapped.size, _MADV_REMOVE)
