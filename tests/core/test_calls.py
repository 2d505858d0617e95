"""A user's function that cannot be called as it will be is refused, and none that can be."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from headgate.core.calls import refuse_call, uses_name
from headgate.core.errors import ConfigError
from headgate.core.frames import frames_in, users_part, users_place


class Methods:
    def one(self, df: Any) -> None: ...

    def two(self, df: Any, number: int) -> None: ...

    @staticmethod
    def still(df: Any, number: int) -> None: ...

    @classmethod
    def of_class(cls, df: Any, number: int) -> None: ...

    def __call__(self, df: Any, number: int) -> None: ...


def narrow(df: Any) -> None: ...


@functools.wraps(narrow)
def adapts(df: Any, number: int) -> None:
    """Say that it takes one argument, as its wrapped function does, and take two."""


def three(a: Any, b: Any, c: Any) -> None: ...


def by_name_only(*, df: Any, number: int) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        Methods().two,
        Methods.still,
        Methods.of_class,
        Methods(),
        adapts,
        functools.partial(three, 1),
        functools.partial(three, c=1),
        lambda *args: None,
        lambda *args, **kwargs: None,
        lambda df, number, more=3: None,
        lambda df, *rest: None,
        lambda a, b, /: None,
        print,
        max,
        dict,
        functools.partialmethod(three, 1),
    ],
)
def test_what_can_be_called_passes(function: Callable[..., Any]) -> None:
    if isinstance(function, functools.partialmethod):
        function = functools.partial(three, 1)
    refuse_call(function, "it", "df", "number")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Methods().one, "too many positional arguments"),
        (narrow, "too many positional arguments"),
        (three, "missing a required argument: 'c'"),
        (lambda: None, "too many positional arguments"),
        (by_name_only, "too many positional arguments"),
        (functools.partial(three, 1, 2), "too many positional arguments"),
        (functools.partial(three, a=1), "too many positional arguments"),
        (7, "it is int"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(function: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        refuse_call(function, "the function", "df", "number")
    assert str(refused.value).startswith("the function")
    assert "\n" not in str(refused.value)


def test_names_are_part_of_a_call() -> None:
    named = ("key", "timerValues")
    refuse_call(lambda key, timerValues: None, "it", named=named)
    refuse_call(lambda timerValues, key, more=1: None, "it", named=named)
    refuse_call(lambda **all: None, "it", named=named)
    for function in (lambda key, timers: None, lambda *all: None, lambda key, timerValues, /: None):
        with pytest.raises(
            ConfigError, match=r"in test_calls\.py line \d+ is called as \(key=\.\.\."
        ):
            refuse_call(function, "it", named=named)


def test_a_name_is_found_wherever_a_class_uses_it() -> None:
    class Uses:
        @property
        def later(self) -> Any:
            return lambda: self.handle.registerTimer(1)  # type: ignore[attr-defined]

    class Inherits(Uses): ...

    class Not:
        registerTimer = 1

    assert uses_name(Inherits, "registerTimer")
    assert not uses_name(Not, "registerTimer")


def test_the_users_own_innermost_frame_counts() -> None:
    text = """
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1, in main
  File "/srv/headgate/jobs.py", line 12, in parse
  File "/srv/lib.py", line 7, in deeper
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
  File "/x/site-packages/numpy/core.py", line 3, in f
"""
    assert users_place(frames_in(text)) == "in lib.py line 7"
    only = '  File "/x/site-packages/mine/core.py", line 3, in f\n'
    assert users_place(frames_in(only)) == "in core.py line 3"
    ours = '  File "/x/site-packages/headgate/spark/worker/user_processor.py", line 3, in f\n'
    assert users_place(frames_in(ours)) == ""
    assert users_place([("/tmp/ipykernel_1/2.py", 3, "f"), ("<frozen abc>", 1, "g")]) == (
        "in 2.py line 3"
    )


def test_a_trace_begins_with_the_users_first_frame() -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_call(narrow, "it", "df", "number")
    trace = users_part(raised.value.__traceback__)
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "test_a_trace_begins_with_the_users_first_frame"
    inner = raised.value.__traceback__.tb_next  # type: ignore[union-attr]
    assert users_part(inner) is None
