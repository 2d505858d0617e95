"""docs/papers.md claims what is there, and says truly what kind of proof there is."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from reach import Reach

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "papers.md"

CLAIMS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and re.search(r"`headgate(_demo|_lab)?\.", line)
]

TESTS_ONLY = "library, called by tests only"
PROOF = re.compile(rf"Spark(, weaker: \S.*[^.])?|simulator|library|{TESTS_ONLY}")

EXPERIMENTS = ("headgate_lab.experiments", "headgate.whatif", "headgate_lab.testing")
BENCHMARKS = "headgate_lab.bench"
APART = {"sim", "dataflow", "oplus", "tuple_buffer", "experiments"}
"""Tests of what does not run on Spark."""


def public() -> list[str]:
    """Return where a user begins: what ``import headgate`` gives, and the commands."""
    headgate = importlib.import_module("headgate")
    names = [f"{module}.{name}" for name, module in headgate._WHERE.items()]
    return ["headgate", "headgate.cli", "headgate.cli.main", *plugins(), *names]


def plugins() -> list[str]:
    """Return what demo and laboratory make known by entry points: commands, policies, workloads."""
    found = []
    for name in ("demo", "lab"):
        text = (ROOT / name / "pyproject.toml").read_text(encoding="utf-8")
        groups = tomllib.loads(text)["project"]["entry-points"].values()
        found += [target.replace(":", ".") for group in groups for target in group.values()]
    return found


@functools.cache
def reached(*without: str) -> Reach:
    return Reach(public(), without)


@pytest.mark.parametrize("cells", CLAIMS, ids=lambda cells: cells[2].strip(" `"))
def test_every_claim_has_its_function_and_its_test(cells: list[str]) -> None:
    dotted, test = (cell.strip(" `") for cell in cells[2:4])
    assert resolved(dotted) is not None
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def resolved(dotted: str) -> Any:
    """Return what a dotted name names: a module's attribute, or one of a class."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


def test_papers_makes_claims() -> None:
    assert len(CLAIMS) > 5


def test_every_claim_says_what_kind_of_proof_it_has() -> None:
    assert [cells for cells in CLAIMS if len(cells) != 5 or not PROOF.fullmatch(cells[4])] == []


def test_what_is_claimed_on_spark_can_be_come_to_without_an_experiment_or_a_test() -> None:
    from_queries, with_benchmarks = reached(*EXPERIMENTS, BENCHMARKS), reached(*EXPERIMENTS)
    wrong = []
    for _, _, function, test, proof in CLAIMS:
        if proof.startswith("Spark"):
            # A benchmark runs on Spark as well, but what nothing else uses is not the whole claim.
            allowed = with_benchmarks if "weaker" in proof else from_queries
            if (
                function.strip("`") not in allowed
                or Path(test.partition("::")[0]).parent.name in APART
            ):
                wrong.append((function, test, proof))
    assert wrong == []


def test_what_nobody_but_a_test_calls_says_so_and_nothing_else_does() -> None:
    anywhere = reached("headgate_lab.testing")
    uncalled = {c[2] for c in CLAIMS if c[2].strip("`") not in anywhere}
    assert {c[2] for c in CLAIMS if c[4] == TESTS_ONLY} == uncalled


def test_who_is_reached_is_seen_through_methods_and_names_made_of_text() -> None:
    on_spark, anywhere = reached(*EXPERIMENTS, BENCHMARKS), reached("headgate_lab.testing")
    assert "headgate_lab.rivals.drs.Drs.decide" in on_spark
    assert "headgate.whatif.simulation.Simulation" not in on_spark
    assert "headgate_lab.experiments.drrs.fig10.run" in anywhere
    assert "headgate_lab.bench.henge.run" in anywhere
    assert "headgate_lab.testing.deferral.Deferral" not in anywhere
