"""`import headgate as hg` stays small, true and cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headgate"
LABORATORY = SOURCE.parents[1] / "lab" / "src" / "headgate_lab"
DEMO = SOURCE.parents[1] / "demo" / "src" / "headgate_demo"
MODULES = sorted([*SOURCE.rglob("*.py"), *DEMO.rglob("*.py"), *LABORATORY.rglob("*.py")])

PUBLIC_MAX = 24
# A name more is a decision: add it here, to the README and to the change log.
PUBLIC = {
    "ArrowProcessor",
    "CheckpointError",
    "ConfigError",
    "Fleet",
    "HeadgateError",
    "OperatorPlus",
    "Policy",
    "Query",
    "Sink",
    "Slo",
    "UnsupportedQuery",
    "Utility",
    "Writer",
    "__version__",
    "adopt",
    "attach",
    "doctor",
    "explain",
    "export",
    "inspect",
    "merge",
    "on_event",
    "policies",
    "session",
    "simulate",
    "stateful",
    "verify",
    "writeStream",
}

# What `headgate.control` gives to a policy of one's own, beside `hg.Policy`.
POLICYS_NAMES = {
    "NOTHING",
    "Change",
    "Decision",
    "Observation",
    "OperatorView",
    "arrival_rate",
    "mean_service_rate",
    "scaled",
}


def declared(tree: ast.Module) -> list[str] | None:
    """Return the literal `__all__` of a module, or None where it has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return None


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at its top level."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE.parents[1])))
def test_all_lists_only_what_the_module_has(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    exported = declared(tree)
    if exported is None or "__getattr__" in defined(tree):
        return  # nothing claimed, or lazy: the next tests resolve those
    assert len(set(exported)) == len(exported)
    assert set(exported) - defined(tree) == set()


def test_no_package_gives_a_name_that_another_of_its_modules_has() -> None:
    # Importing that module puts it where the name is meant, at whatever moment it happens.
    wrong = []
    for path in MODULES:
        if path.name != "__init__.py":
            continue
        package = f"{path.parents[1].name}.{path.parent.name}"
        modules = {p.stem if p.is_file() else p.name for p in path.parent.iterdir()}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for name in (a.asname or a.name for a in getattr(node, "names", []) if source):
                # from the package: the module itself; from the module: it is there already
                if name in modules and not source.removesuffix(f".{name}").endswith(package):
                    wrong.append(f"{package}: {name} of {source}")
    assert wrong == []


def test_public_names_are_few_and_agreed() -> None:
    import headgate

    assert len(headgate.__all__) <= PUBLIC_MAX
    assert set(headgate.__all__) - PUBLIC == set()


def test_what_a_policy_of_ones_own_imports_is_little_and_in_its_page() -> None:
    from headgate import control

    assert set(control.__all__) == POLICYS_NAMES
    page = (SOURCE.parents[1] / "docs" / "own-policy.md").read_text(encoding="utf-8")
    assert {name for name in POLICYS_NAMES if f"`{name}" not in page} == set()


def test_every_public_name_can_be_had() -> None:
    import headgate

    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    assert set(headgate.__all__) <= set(dir(headgate))


def test_the_version_is_the_one_of_the_package() -> None:
    import headgate

    project = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{headgate.__version__}"\n' in project


def test_import_headgate_loads_nothing_heavy() -> None:
    # In its own process, because other tests of this one have imported them long since.
    heavy = ["numba", "pandas", "pyarrow", "pyspark", "rich", "typer"]
    code = (
        f"import sys, headgate as hg; hg.__all__; print([m for m in {heavy} if m in sys.modules])"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout
    assert seen.strip() == "[]"
