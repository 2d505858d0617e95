"""Words of a command line, what each of them becomes, and the commands that other packages bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import typer

from headgate.cli import extensions
from headgate.cli import input as typed
from headgate.core.errors import HeadgateError

Recorded = Callable[[str, Iterable[str]], None]

SETTINGS = (
    "spark.a=b", "spark.a=", "a=b", "spark.a", "spark.=1", "spark." + "a" * 200 + "=1",
    "spark." + "a" * 201 + "=1", "spark.master=local[2]", "spark.master=local[0]", "spark.master=yarn",
    "spark.master=local[*, 3]", "spark.master=local[10000]", "spark.master=local-cluster[2,1,1024]",
    "spark.master=spark://h:1", "spark.master=mesos://", "spark.driver.memory=2g",
    "spark.driver.memory=0g", "spark.driver.memory=2x", "spark.executor.memoryOverhead=1GB",
    "spark.executor.pyspark.memory=5", "spark.sql.shuffle.partitions=0",
    "spark.sql.shuffle.partitions=8", "spark.task.cpus=1.5", "spark.executor.cores=9999999999",
    "spark.executor.cores=99999999999", "spark.cores.max=4", "spark.executor.instances=0",
    "spark.executor.instances=-1", "spark.ui.port=4040", "spark.ui.port=x",
    "spark.ui.enabled=TRUE", "spark.ui.enabled=yes", "spark.shuffle.service.enabled=auto",
    "spark.sql.session.timeZone=Europe/Paris", "spark.sql.session.timeZone=Europe/Pari",
    "spark.sql.session.timeZone=UTC+3", "spark.sql.session.timeZone=+02:00",
    "spark.sql.session.timeZone=EST", "spark.sql.session.timeZone=Z+1:00:00",
)  # fmt: skip
OPTIONS = (
    "a=1", "a=-1", "a=1.5", "a=1e3", "a=true", "a=false", "a=True", "a=x", "a=", "a", "=1", "a b=1",
    " a =1", "a=NaN", "a=-Infinity", "a=1e999", "a= 1 ", "a=0x1", "a=[1]", "a=99999999999999999999",
    "a" * 100 + "=1", "a" * 101 + "=1", "9a=1",
)  # fmt: skip
CHANGES = (
    "20s=4",
    "1 min=1",
    "20s",
    "20s=0",
    "20s=32767",
    "20s=32768",
    "20=4",
    "=4",
    "20s= 4 ",
    "0s=4",
)
PLACES = ("/a", "a", "file:/a/b", "s3://b/k", "s3://b", "hdfs://n/a", "http://x/y", "", "dbfs:/x")
RATES = (None, "5", "0", "-1", "1e9", "1.1e9", "nan", "inf", "sine(base=1)", "")
PACKAGES = (["g:n:1"], ["g:n:1, h:m:2", "i:o:3"], ["g:n"], ["g:n:1:2"], ["g n:1:2"], [""])


def told(do: Callable[[], Any]) -> str:
    try:
        return repr(do())
    except (HeadgateError, typer.BadParameter) as error:
        return f"{type(error).__name__}: {error}"


def test_words_become_what_is_recorded(recorded: Recorded) -> None:
    lines: list[str] = []

    def each(name: str, words: Iterable[Any], do: Callable[[Any], Any]) -> None:
        lines.extend(f"{name} {str(w)[:70]}: {told(lambda w=w: do(w))[:220]}" for w in words)

    each("conf", SETTINGS, lambda w: typed.parse_conf([w]))
    each("option", OPTIONS, lambda w: typed.parse_options([w]))
    each("scale at", CHANGES, lambda w: typed.parse_scale_at([w]))
    each("directory", PLACES, typed.directory)
    each("checkpoint", PLACES, typed.checkpoint_place)
    each("checkpoint's text", PLACES, typed.checkpoint_text)
    each("rate", RATES, typed.number_or_text)
    each("packages", PACKAGES, lambda w: typed.parse_conf((), w))
    each("twice", (["a=1", "a=2"], ["a=1", " a=2"]), typed.parse_options)
    each("order", (["9s=1", "1s=2"],), typed.parse_scale_at)
    each("master", ("local", "local[2]", "local[2,3]", "k8s://x", "spark://" + "h" * 1001, "x"),
         lambda w: bool(typed.MASTER.fullmatch(w)))  # fmt: skip
    recorded("typed-words", lines)


class Extension:
    """What a package says that it brings."""

    value = "theirs:add"

    def __init__(self, add: Callable[[typer.Typer], None]) -> None:
        self._add = add

    def load(self) -> Callable[[typer.Typer], None]:
        return self._add


def test_commands_of_other_packages_are_there_or_stood_in_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(app: typer.Typer) -> None:
        def figure() -> None: ...

        app.command()(figure)  # named by its function
        app.command("bench")(lambda: None)

    def fail(app: typer.Typer) -> None:
        raise ZeroDivisionError("theirs")

    for given, names in (
        ([], ["figure", "bench", "demo"]),
        ([Extension(add)], ["figure", "bench", "demo"]),
        ([Extension(fail)], ["figure", "bench", "demo"]),
    ):
        monkeypatch.setattr(extensions, "entry_points", lambda group, given=given: given)
        app = typer.Typer()
        extensions.load(app)
        found = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
        assert found == names
        helps = [c.help for c in app.registered_commands]
        assert [h is None for h in helps] == [bool(given) and given[0]._add is add] * 2 + [False]
    said = capsys.readouterr().err
    assert said == (
        "headgate: commands of theirs:add cannot be loaded: ZeroDivisionError: theirs\n"
    )
    assert Path(typed.__file__).name == "input.py"
