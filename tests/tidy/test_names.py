"""A class has a name of its own, and a file says what it holds: nobody need ask which is meant.

Names with an underscore are their file's own and may come again. Names that are there twice all the same
stand below, each with its reason; a list may get shorter, and a name that is no longer there twice has
to leave it.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT, LABORATORY = ROOT / "src/headgate", ROOT / "lab/src/headgate_lab"
DEMO = ROOT / "demo/src/headgate_demo"

IN_THE_PRODUCT = {
    "Sink": "a package's, and what takes the outputs of any query: `hg.Sink` is the name that users know",
}

FILES_TWICE = set(
    """
    adoption aggregate buffers calls changes codec commands decisions deduplicate entries epochs errors
    expressions failure files fleet following formats frames hosts input job kernels limits lineage
    live location log merge merging metrics operator
    operator_plus output passing plan pools ports
    processor progress registry replicas rules run session sessions shipping simulate spec streams
    success verify waiting writer
    """.split()
)
"""Files of the product that have their name from two rooms or more."""

EMPTY_WORDS = set(
    "asked begun common diary found given helpers holding kept leaving losing manager one plane seen "
    "taking useful utils whereabouts".split()
)
"""Words that say nothing of what a file holds."""
EMPTY_STILL = {"begun", "kept", "whereabouts"}

IN_THE_LABORATORY = {
    "Band": "how close two records of a band join must be; the product's is a policy's band of loads",
    "Beside": "one workload of a figure; the product's are calls beside the batches",
    "Case": "one run of a bench, of a figure, of a table, of a trial: nobody needs two of them at once",
    "Cell": "one run of a figure's grid; the product's is a part of the controller's measurements",
    "Change": "what a change costs in a bench and in the simulated fleet; the product's is a policy's",
    "Comparison": "who runs what in a bench; the product's is a part of a join's condition",
    "Counts": "events of a simulated pool; the product's are what a slot task counted",
    "Edge": "of the record-level simulator and of the pools' simulator, which know nothing of each other",
    "Entry": "in the tuple buffer, and in the list of figures; the product's is a slot's input",
    "Epoch": "of O+ as a reference and as processes: the same thing in two forms",
    "Job": "of a bench, of the storm and of the record-level simulator",
    "Kind": "of a record in the tuple buffer; the product's is of a leaf",
    "Load": "of a bench, of a table and of the tuple buffer's sources",
    "OperatorModel": "of the record-level simulator; the product's is of `headgate simulate`",
    "Plan": "of a life in a bench and of a figure's sweep; the product's is a migration's",
    "Record": "of the record-level simulator and of the reference of aggregates; the product's is of O+",
    "Relay": "of signals in the record-level simulator; the product's is of rows between operators",
    "Request": "for a figure; the product's is to a slot",
    "Setting": "of a bench; the product's is Spark's",
    "Slot": "of O+ as processes and of the record-level simulator",
    "Step": "of a figure's rate and of DRRS's coordinator; the product's is a form of utility",
    "StopRestart": "a rival in the record-level simulator of the strategy that it is in the product",
    "Trial": "of a migration and of a store, by hypothesis",
    "Watermark": "of the record-level simulator; the product's is of O+",
    "Words": "a figure's run of the word count; the product's are columns as words",
    "Workload": "of a figure of DRRS; the product's is a query to run",
    "WrongAnswer": "of a bench, and of the model of migrations",
}


@functools.cache
def classes() -> dict[str, tuple[Path, ...]]:
    """Return the files of each public class, by its name."""
    found = defaultdict(list)
    for path in sorted([*PRODUCT.rglob("*.py"), *DEMO.rglob("*.py"), *LABORATORY.rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def twice(*, in_the_product: bool) -> set[str]:
    """Return names there are twice in the product; or else in all, but not in the product alone."""
    own = {
        name: [path for path in paths if path.is_relative_to(PRODUCT)]
        for name, paths in classes().items()
    }
    if in_the_product:
        return {name for name, paths in own.items() if len(paths) > 1}
    return {
        name for name, paths in classes().items() if len(paths) > 1 and len(paths) > len(own[name])
    }


def test_the_scan_finds_what_is_there_twice() -> None:
    assert len(classes()) > 500
    assert [path.parent.name for path in classes()["StopRestart"]] == ["methods", "strategies"]


@pytest.mark.parametrize(
    ("listed", "in_the_product"), [(IN_THE_PRODUCT, True), (IN_THE_LABORATORY, False)]
)
def test_no_class_name_is_there_twice_but_for_those_with_a_reason(
    listed: dict[str, str], in_the_product: bool
) -> None:
    assert sorted(twice(in_the_product=in_the_product) - set(listed)) == []


@pytest.mark.parametrize(
    ("listed", "in_the_product"), [(IN_THE_PRODUCT, True), (IN_THE_LABORATORY, False)]
)
def test_a_name_that_is_there_once_has_left_the_list(
    listed: dict[str, str], in_the_product: bool
) -> None:
    assert sorted(set(listed) - twice(in_the_product=in_the_product)) == []


@functools.cache
def files() -> Counter[str]:
    """Return how many files of the product have a name."""
    return Counter(path.stem for path in PRODUCT.rglob("*.py") if not path.stem.startswith("__"))


def test_no_file_has_the_name_of_another_but_for_those_listed() -> None:
    assert {name for name, count in files().items() if count > 1} == FILES_TWICE


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert files().keys() & EMPTY_WORDS == EMPTY_STILL
