"""First lines say what a thing does, and charters name what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PRODUCT = Path(__file__).resolve().parents[2] / "src" / "headgate"
ROOT = PRODUCT.parents[1]
MODULES = sorted(PRODUCT.rglob("*.py"))
OTHERS = sorted([*(ROOT / "demo" / "src").rglob("*.py"), *(ROOT / "lab" / "src").rglob("*.py")])
CHARTERS = [path for path in MODULES if path.name == "__init__.py" and path.parent != PRODUCT]
CLAUSE = re.compile(r"(What|How|Where|Which|Whether|From|When|Who)\b")

VERB = re.compile(r"(?!(?:Columns|Entries|Functions|Keys|Rows|Slots|This)\b)[A-Z][a-z]+s\b")
"""A verb in the third person, as the first word; nouns that have begun a module are named."""


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of the docstrings of a module, its classes and functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in [tree, *ast.walk(tree)]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield getattr(node, "lineno", 1), (ast.get_docstring(node) or "").partition("\n")[0]


def named_in(charter: str) -> set[str]:
    """Return the modules and rooms that a charter names: in parentheses, or below ``headgate``."""
    lists = re.findall(r"\(([a-z_.]+(?:, [a-z_.]+)*)\)", charter)
    dotted = re.findall(r"`headgate\.([\w.]+)`", charter)
    listed = {name.removeprefix("headgate.") for text in lists for name in text.split(", ")}
    return listed | set(dotted)


def is_there(name: str, package: Path) -> bool:
    """Return whether a name is a module or a room, seen from a package."""
    tail = Path(*name.split("."))
    places = [package, *package.parents[: len(package.relative_to(PRODUCT).parts)]]
    return any(
        (place / tail).is_dir() or (place / tail).with_suffix(".py").is_file() for place in places
    )


def test_the_first_line_of_a_docstring_is_no_clause() -> None:
    clauses = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in MODULES + OTHERS
        for number, line in first_lines(path)
        if CLAUSE.match(line)
    ]
    assert clauses == []


@pytest.mark.parametrize(
    ("line", "is_verb"),
    [
        ("Reads one Aggregate node.", True),
        ("The handle of a query.", False),
        ("Reading one node.", False),
        ("Entries of state as records.", False),
    ],
)
def test_a_verb_is_told_from_a_noun(line: str, is_verb: bool) -> None:
    assert bool(VERB.match(line)) is is_verb


def test_the_first_line_of_a_module_begins_with_a_verb() -> None:
    modules = [path for path in MODULES if path != PRODUCT / "__init__.py"]
    lines = {path: next(first_lines(path))[1] for path in modules}
    assert {str(path): line for path, line in lines.items() if not VERB.match(line)} == {}


def test_charters_name_modules_and_rooms_that_are_there() -> None:
    missing = {}
    for path in CHARTERS:
        charter = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        absent = {name for name in named_in(charter) if not is_there(name, path.parent)}
        if absent:
            missing[str(path.parent.relative_to(PRODUCT))] = absent
    assert missing == {}


@pytest.mark.parametrize(
    ("charter", "names"),
    [
        (
            "Rows (kept, lost) lie in `headgate.core.input` (input)",
            {"kept, lost", "core.input", "input"},
        ),
        ("Nothing (at all) and (Numbers).", set()),
    ],
)
def test_a_charter_names_what_stands_in_parentheses(charter: str, names: set[str]) -> None:
    assert named_in(charter) == {part for name in names for part in name.split(", ")}
