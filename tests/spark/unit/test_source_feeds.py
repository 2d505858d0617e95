"""Which feed reads a source of a plan in real time, and which sources have none."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate.core.installed import SOURCES, Plugin
from headgate.spark.realtime import source_feeds
from headgate.spark.realtime.clocked import ClockFeed, RateRows
from headgate.spark.realtime.source_feeds import feed_of


class WithFeed:
    """A source of a package that can be read in real time."""

    @staticmethod
    def feed(options: dict[str, str]) -> tuple[str, str]:
        return "its own feed", options["n"]


class WithoutFeed:
    """One that cannot."""


def node(name: str, **parts: Any) -> Any:
    simple = SimpleNamespace(getSimpleName=lambda: name)
    return SimpleNamespace(getClass=lambda: simple, **parts)


def leaf(source: str, kind: str = "StreamingRelationV2", **options: str) -> Any:
    entries = [
        SimpleNamespace(getKey=lambda k=key: k, getValue=lambda v=value: v)
        for key, value in options.items()
    ]
    given = SimpleNamespace(asCaseSensitiveMap=lambda: SimpleNamespace(entrySet=lambda: entries))
    return node(
        kind,
        table=lambda: node("ATable"),
        sourceName=lambda: source,
        extraOptions=lambda: given,
    )


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        name: Plugin("source", name, (EntryPoint(name, f"{__name__}:{made}", SOURCES),))
        for name, made in {"mine": "WithFeed", "plain": "WithoutFeed", "gone": "NoSuch"}.items()
    }
    monkeypatch.setattr(source_feeds, "installed", lambda group: known if group == SOURCES else {})


def test_a_source_of_a_package_is_read_by_its_own_feed() -> None:
    assert feed_of(leaf("mine", n="7")) == ("its own feed", "7")


def test_rate_is_read_by_the_clock_and_only_by_it() -> None:
    feed = feed_of(leaf("rate", rowsPerSecond="7"))
    assert feed == ClockFeed(RateRows(7), only_here=True)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (leaf("socket"), 'format "socket"'),
        (leaf("plain"), 'format "plain"'),
        (leaf("rate", kind="StreamingRelation"), "a source of files"),
    ],
)
def test_a_source_without_a_feed_is_named_with_what_to_do(source: Any, what: str) -> None:
    with pytest.raises(UnsupportedQuery, match=f"^{what} cannot be read in real time, .*fallback"):
        feed_of(source)


def test_a_package_that_cannot_be_loaded_or_fails_is_named() -> None:
    with pytest.raises(ConfigError, match=r'source "gone" .* cannot be loaded: AttributeError'):
        feed_of(leaf("gone"))
    with pytest.raises(ConfigError, match=r'source "mine" .* cannot be read in real time: KeyErr'):
        feed_of(leaf("mine"))
