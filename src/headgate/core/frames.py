"""Finds the frames of a user's own code in a traceback."""

from __future__ import annotations

import functools
import inspect
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

Frame = tuple[str, int, str]
"""File, line and function."""

_HEADGATE = f"{Path(__file__).parents[1]}/"
_STANDARD = f"{sysconfig.get_path('stdlib')}/"
_SPARK = re.compile(r"(^|/)(pyspark|py4j)(/|\.zip/|-[\d.]+-src\.zip/)")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<frozen ")
_HEADGATE_THERE = re.compile(r"/(site|dist)-packages/headgate/")
"""Matches files of headgate on a host that has headgate in another directory than this host."""


def is_headgates(file: str) -> bool:
    """Return whether a file is one of headgate's own."""
    return file.startswith(_HEADGATE) or _HEADGATE_THERE.search(file) is not None


def users_place(frames: Iterable[Frame]) -> str:
    """Return the place where a user's code failed, as ``in jobs.py line 3``; "" if there is none.

    This is the innermost frame of the user's own files, or else that of a library.
    """
    others = [f for f in frames if not is_headgates(f[0]) and _SPARK.search(f[0]) is None]
    others = [f for f in others if not f[0].startswith("<frozen ")]
    own = [f for f in others if not _LIBRARY.search(f[0]) and not f[0].startswith(_STANDARD)]
    if not own and not others:
        return ""
    file, line, _ = (own or others)[-1]
    return f"in {file.rpartition('/')[2].strip('<>')} line {line}"


def place_of(function: Any) -> str:
    """Return the place where a function begins, as text like that of `users_place`; "" if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else None
    # a callable object has the code of the method `__call__` of its class
    code = getattr(function, "__code__", None) or getattr(
        vars(type(function)).get("__call__"), "__code__", None
    )
    return "" if code is None else users_place([(code.co_filename, code.co_firstlineno, "")])


def users_level() -> int:
    """Return the `stacklevel` with which a warning of the caller names the user's line."""
    files = [frame.filename for frame in inspect.stack(context=0)[1:]]
    others = (n for n, f in enumerate(files, 1) if not (is_headgates(f) or f.startswith(_STANDARD)))
    return next(others, len(files))


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """Return the frames of a traceback, outermost first, without reading any source."""
    frames: list[Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first frames of headgate and Spark; None if none is left."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_headgates(file) and _SPARK.search(file) is None:
            return trace
        trace = trace.tb_next
    return None


_WRITTEN = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)


def frames_in(text: str) -> list[Frame]:
    """Return the frames of a traceback in a text."""
    return [(file, int(line), name) for file, line, name in _WRITTEN.findall(text)]
