"""A panic of a native library is no Exception, and is one sentence all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate import scenario as scenarios
from headgate.checkpoint.objects import ObjectFiles
from headgate.checkpoint.remote import panics_told
from headgate.cli import app
from headgate.core.errors import CheckpointError, ConfigError, EngineError, without_panics
from headgate.core.quiet import NoiseFilter
from headgate.core.stores import refuse_unsendable
from headgate.operators.failure import FAILURES, explained
from headgate.scenario.spark import call_user, user_function


class PanicException(BaseException):
    """As pyo3 makes one for each library."""


def panic(*_: Any, **__: Any) -> Any:
    msg = "called `Result::unwrap()` on an `Err` value: InvalidHeaderValue\nmore"
    raise PanicException(msg)


@pytest.mark.parametrize(
    "variable", ["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]
)
def test_a_credential_with_a_line_break_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "secret\n")
    done = CliRunner().invoke(app, ["inspect", "s3://bucket/key"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert variable in done.stderr
    assert "secret" not in done.stderr


def test_an_option_with_a_line_break_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"option headgate\.store\.sessionToken holds"):
        ObjectFiles("s3://b/k", {"sessionToken": "a\nb"}).exists("x")
    with pytest.raises(CheckpointError, match=r"option headgate\.store\.sasKey holds"):
        refuse_unsendable("abfss://b@a.dfs.core.windows.net/k", {"sasKey": "a\r"})
    refuse_unsendable("s3://b/k", {"sessionToken": "a\tb"})


def test_a_panic_of_a_stores_library_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match=r"s3://b/k/x: the library .* broke off") as told:
        with panics_told("s3://b/k/x", "read"):
            panic()
    assert "InvalidHeaderValue" not in str(told.value)
    with pytest.raises(KeyboardInterrupt), panics_told("x", "read"):
        raise KeyboardInterrupt


def test_a_panic_in_a_command_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "inspect", panic)
    done = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith("headgate: PanicException: called `Result::unwrap()`")
    assert done.stderr.count("\n") == 1


def test_a_panic_in_a_users_function_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="a native library panicked: called"):
        call_user("mine:query", panic)
    text = "class PanicException(BaseException): pass\nraise PanicException('x')\n"
    (tmp_path / "panicking_module.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, EngineError), match="native library panicked: x"):
        user_function("panicking_module:main")
    with pytest.raises(FAILURES) as raised:
        panic()
    assert "PanicException in test_panics.py line" in str(explained(raised.value, "x"))


def test_only_panics_become_errors() -> None:
    with pytest.raises(SystemExit), without_panics():
        raise SystemExit(3)


def test_what_rust_prints_of_a_panic_is_left_out() -> None:
    lines: list[bytes] = []
    noise = NoiseFilter(lines.append)
    said = (
        "thread '<unnamed>' (7) panicked at /x/credential.rs:225:58:",
        "called `Result::unwrap()` on an `Err` value: InvalidHeaderValue",
        "stack backtrace:",
        "   0: __rustc::rust_begin_unwind",
        "             at /x/y.c:1",
        "note: Some details are omitted",
        "what else is said",
        "   0: of others",
    )
    for line in said:
        noise.line(f"{line}\n".encode())
    assert lines == [b"what else is said\n", b"   0: of others\n"]
