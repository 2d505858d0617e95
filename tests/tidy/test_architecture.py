"""The map is of this house: rooms, floors and arrows, and which files an addition touches."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import rooms  # noqa: E402

TEXT = rooms.PAGE.read_text(encoding="utf-8")
SOURCES = ROOT / "src" / "headgate"
_ELSEWHERE = ("demo/", "docs/", "lab/", "scripts/", "src/", "tests/", "README.md", "pyproject.toml")


def path_of(name: str) -> Path:
    """Return the file or directory that the page names."""
    return ROOT / name if name.startswith(_ELSEWHERE) else SOURCES / name


def additions() -> dict[str, tuple[list[str], list[str]]]:
    """Return of each row of the last table its words and its files."""
    _, _, table = TEXT.partition("| to add | as is there | touch |\n|---|---|---|\n")
    found = {}
    for line in table.splitlines():
        if not line.startswith("|"):
            break
        what, words, files = (cell.strip() for cell in line.strip("|").split("|"))
        found[what] = (re.findall("`([^`]+)`", words), re.findall("`([^`]+)`", files))
    return found


ADDITIONS = additions()


def test_the_picture_and_the_table_are_those_of_the_sources() -> None:
    house = rooms.rooms()
    assert rooms.PAGE.read_text(encoding="utf-8") == rooms.page(TEXT, house), "make docs"
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(house), "make docs"


def test_every_arrow_goes_down_and_every_room_is_drawn() -> None:
    house = rooms.rooms()
    level = rooms.floors(house)
    assert all(level[other] < level[name] for name in house for other in house[name])
    assert len(house) > 20
    drawn = re.findall(r">([\w.]+)</text>", rooms.PICTURE.read_text(encoding="utf-8"))
    assert sorted(drawn) == sorted(house)


def test_every_room_stands_in_a_contract_and_no_import_is_left_out_of_one() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    ignored = ("ignore_imports", "exhaustive_ignores", "unmatched_ignore_imports_alerting")
    assert [c["name"] for c in contracts if any(key in c for key in ignored)] == []
    layers = {c["containers"][0]: c for c in contracts if c["type"] == "layers"}
    tops = {"headgate": "src", "headgate.spark": "src", "headgate_demo": "demo/src"}
    tops["headgate_lab"] = "lab/src"
    assert layers.keys() == tops.keys()
    for container, contract in layers.items():
        top = ROOT / tops[container]
        inside = {p.stem for p in (top / container.replace(".", "/")).iterdir()}
        named = set(re.findall(r"\w+", " ".join(contract["layers"])))
        assert contract["exhaustive"]
        assert named == {n for n in inside if not n.startswith("_")} - {"py"}


def test_nothing_imports_the_laboratory_and_only_the_laboratory_the_demo() -> None:
    house = rooms.rooms()
    assert [n for n, others in house.items() if rooms.LABORATORY in others] == []
    assert [n for n, others in house.items() if rooms.DEMO in others] == [rooms.LABORATORY]


def test_a_circle_is_an_error_and_an_implied_arrow_is_left_out() -> None:
    house = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert rooms.arrows({n: frozenset(o) for n, o in house.items()}) == [("a", "b"), ("b", "c")]
    with pytest.raises(ValueError, match="rooms import each other: a, b"):
        rooms.floors({"a": frozenset("b"), "b": frozenset("a"), "c": frozenset()})


def test_every_path_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([\w./-]+(?:/[\w.-]+|\.(?:py|md|toml|sh)))`", TEXT)
    assert len(named) > 30
    assert [name for name in named if not path_of(name).exists()] == []


@pytest.mark.parametrize("what", ADDITIONS)
def test_an_addition_touches_the_files_that_the_map_names_and_no_other(what: str) -> None:
    words, names = ADDITIONS[what]
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(word)}\b" for word in words))
    having = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    files = [name for name in names if path_of(name).is_file()]
    assert having == {name for name in files if not name.startswith(_ELSEWHERE)}
    others = [name for name in files if name.startswith(_ELSEWHERE)]
    assert [n for n in others if not pattern.search(path_of(n).read_text(encoding="utf-8"))] == []


def test_the_map_has_rows_for_what_is_added_most() -> None:
    text = " ".join(ADDITIONS)
    wanted = ("aggregate function", "policy", "sink", "checkpoints", "Spark minor")
    assert [word for word in wanted if word not in text] == []
