"""Dependencies are locked by hash, explained, and no more than agreed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headgate.spark.jvm.minors import MINORS

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["build.lock", "run.lock", "dev.lock"]
SERVERS = "servers.lock"
"""What a real S3 for tests is made of, in an environment of its own."""
OTHER_SPARKS = sorted(path.name for path in (ROOT / "requirements").glob("spark-*.lock"))
"""A lock file with nothing but PySpark for each minor besides the newest."""
CORE = {"pyspark", "pyarrow", "numpy", "numba", "pandas", "msgspec", "typer", "rich"}
BROUGHT = {"py4j": "pyspark"}
"""What is imported and comes with what is asked for."""
OPTIONAL = {
    "src/headgate/report/plot.py": {"matplotlib"},
    "src/headgate/metrics/exporter.py": {"prometheus_client"},
    "src/headgate/ui/app.py": {"starlette", "uvicorn"},
    "src/headgate/ui/control.py": {"starlette"},
    "src/headgate/metrics/families.py": {"prometheus_client"},
    "src/headgate/metrics/spans.py": {"opentelemetry"},
    "lab/src/headgate_lab/testing/stores.py": {"hypothesis", "pytest"},
    "lab/src/headgate_lab/testing/files.py": {"pytest"},
}
"""What a module imports that only an extra brings."""


def project(of: str = ".") -> dict:
    return tomllib.loads((ROOT / of / "pyproject.toml").read_text(encoding="utf-8"))


def core() -> list[Requirement]:
    return [Requirement(text) for text in project()["project"]["dependencies"]]


def extras() -> list[Requirement]:
    groups = project()["project"]["optional-dependencies"].values()
    asked = [Requirement(text) for group in groups for text in group]
    return [one for one in asked if one.name != "headgate-demo"]  # it is in this repository


def build() -> list[Requirement]:
    return [Requirement(text) for text in project()["build-system"]["requires"]]


def entries(lock: str) -> list[str]:
    """Return the entries of a lock file, each joined to one line, comments dropped."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [entry for entry in "\n".join(lines).replace("\\\n", " ").splitlines() if entry.strip()]


def locked(lock: str) -> dict[str, set[str]]:
    """Return the locked versions of each package; two where they depend on the Python."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.split("--hash")[0].strip())
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


@pytest.mark.parametrize("lock", [*LOCKS, *OTHER_SPARKS, SERVERS])
def test_every_locked_package_has_a_hash(lock: str) -> None:
    assert entries(lock)
    unhashed = [e for e in entries(lock) if not re.search(r"--hash=sha256:[0-9a-f]{64}", e)]
    assert unhashed == []


@pytest.mark.parametrize("lock", [*LOCKS, *OTHER_SPARKS, SERVERS])
def test_no_lock_file_names_an_address(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    assert re.findall(r"https?:|://|@ |--(?:extra-)?index-url|--find-links|--trusted", text) == []


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("run.lock", core),
        ("dev.lock", lambda: core() + extras() + build()),
        ("build.lock", build),
    ],
    ids=LOCKS[1:] + LOCKS[:1],
)
def test_a_lock_file_holds_what_the_project_asks_for(lock: str, wanted) -> None:
    versions = locked(lock)
    for requirement in wanted():
        found = versions.get(canonicalize_name(requirement.name), set())
        assert found, f"{requirement} is not in {lock}: make lock"
        assert all(requirement.specifier.contains(version) for version in found), requirement


def test_every_minor_of_spark_that_may_be_installed_is_locked_and_has_an_adapter() -> None:
    (wanted,) = (one.specifier for one in core() if one.name == "pyspark")
    found = [locked(lock) for lock in [*OTHER_SPARKS, "dev.lock"]]
    versions = [version for one in found for version in one["pyspark"]]
    assert all(wanted.contains(version) for version in versions)
    assert [version.rpartition(".")[0] for version in versions] == list(MINORS)
    assert all(one.keys() == {"pyspark"} for one in found[:-1])


def test_the_lock_files_agree() -> None:
    everything = locked("dev.lock")
    for lock in ("run.lock", "build.lock"):
        for name, versions in locked(lock).items():
            assert versions == everything[name], name


def test_the_core_needs_no_more_than_the_listed_packages() -> None:
    assert {requirement.name for requirement in core()} == CORE


def imported(path: Path) -> set[str]:
    """Return the packages of others that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names - sys.stdlib_module_names


@pytest.mark.parametrize(
    ("sources", "own"),
    [
        ("src", {"headgate"}),
        ("demo/src", {"headgate", "headgate_demo"}),
        ("lab/src", {"headgate", "headgate_demo", "headgate_lab"}),
    ],
)
def test_a_project_imports_only_what_it_asks_for(sources: str, own: set[str]) -> None:
    # The laboratory asks for the product, which asks for the core.
    wrong = {}
    for path in sorted((ROOT / sources).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        others = imported(path) - own - CORE - BROUGHT.keys() - OPTIONAL.get(name, set())
        if others:
            wrong[name] = others
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "others"), [("demo", ["headgate"]), ("lab", ["headgate", "headgate-demo"])]
)
def test_demo_and_laboratory_ask_for_nothing_else_of_others(name: str, others: list[str]) -> None:
    it, version = project(name)["project"], project()["project"]["version"]
    assert it["dependencies"] == [f"{other}=={version}" for other in others]
    assert "optional-dependencies" not in it
    assert project(name)["build-system"] == project()["build-system"]
    assert it["requires-python"] == project()["project"]["requires-python"]


def test_every_dependency_has_a_reason_a_licence_and_its_upkeep() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    table = [line.strip("| ") for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")] for line in table]
    rows = {name: rest for name, *rest in cells}
    for requirement in core() + extras() + build():
        assert requirement.name in rows, f"{requirement.name} is not in docs/dependencies.md"
        reason, licence, *upkeep = rows[requirement.name]
        assert all([reason, licence, upkeep, *upkeep]), requirement.name


def test_every_locked_package_is_named_with_its_licence() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    named = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9_.-]+", text)}
    assert (set(locked("dev.lock")) | set(locked(SERVERS))) - named == set()
