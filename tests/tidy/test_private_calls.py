"""What Spark keeps to itself is used in one room: a new minor of Spark is a change there alone.

Looked for are PySpark's modules that its documentation does not name, names of theirs that begin with an
underscore, Py4J, and classes of the JVM by name. What the room hands out, plans and expressions as they
are in the JVM, may be passed on and asked what they are.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headgate"
ROOM = "spark/jvm/"

PUBLIC = {
    "pyspark",
    "pyspark.accumulators",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.streaming.listener",
    "pyspark.sql.streaming.query",
    "pyspark.sql.streaming.readwriter",
    "pyspark.sql.streaming.stateful_processor",
    "pyspark.sql.types",
}
"""PySpark's modules whose classes its API reference documents."""

EXCEPTED = {
    # Spark starts this file in the place of pyspark.daemon, and it becomes that daemon
    ("spark/worker/daemon.py", "imports pyspark.daemon"),
    # the value of a setting, which a user could write too
    (
        "spark/cluster/session.py",
        "names org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager",
    ),
}

_DOORS = {"jvm", "java_class"}
"""What the room itself reaches classes of the JVM by."""

_SPARKS = re.compile(r"_(jvm|jdf|jc|jsc|jrdd|jq|jsqm|jsparkSession|jreader|jwrite|sc|gateway|\d)")
"""Names of PySpark's and Scala's that nothing of headgate may have either."""

_OF_PYTHON = {"_asdict", "_exit", "_fields", "_make", "_replace"}
_CLASS = re.compile(r"org\.apache\.[a-z.]+[A-Z]\w*")


def test_private_calls_into_spark_stand_in_one_room() -> None:
    trees = {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCES.rglob("*.py"))
    }
    outside = {name: tree for name, tree in trees.items() if not name.startswith(ROOM)}
    own = set().union(*(_defined(tree) for tree in outside.values()))
    found = {
        (name, what): line for name, tree in outside.items() for line, what in _private(tree, own)
    }
    wrong = [
        f"{name}:{line} {what}"
        for (name, what), line in found.items()
        if (name, what) not in EXCEPTED
    ]
    assert not wrong, "give it a function in spark/jvm:\n" + "\n".join(wrong)
    assert found.keys() >= EXCEPTED, "an exception that nothing needs any more"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("rows = frame._jdf.queryExecution()", "uses _jdf"),
        ("started = SparkContext._ensure_initialized()", "uses _ensure_initialized"),
        ("class A(DataFrame):\n    def f(self):\n        return self._jdf", "uses _jdf"),
        ("java = getattr(context, '_jvm')", "uses _jvm"),
        ("catalog = pair._1()", "uses _1"),
        ("import py4j", "imports py4j"),
        ("from py4j.protocol import Py4JError", "imports py4j.protocol"),
        ("def f():\n    import pyspark.worker", "imports pyspark.worker"),
        ("from pyspark import daemon", "imports pyspark.daemon"),
        ("from pyspark.sql import classic", "imports pyspark.sql.classic"),
        (
            "from pyspark.sql.types import _parse_datatype_json_string",
            "imports pyspark.sql.types._parse_datatype_json_string",
        ),
        (
            "from headgate.spark.jvm.gateway import each, jvm",
            "imports headgate.spark.jvm.gateway.jvm",
        ),
        (
            "tag = 'reflect(\"org.apache.spark.util.Utils\", 1)'",
            "names org.apache.spark.util.Utils",
        ),
        ("kind = java.org.apache.spark.sql.types.LongType", "uses org.apache"),
    ],
)
def test_a_private_call_is_seen(source: str, what: str) -> None:
    assert [found for _, found in _private(ast.parse(source), set())] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "from pyspark.sql import DataFrame, functions as F",
        "from pyspark import SparkConf",
        "from headgate.spark.jvm.gateway import Jvm, each",
        "kind = plan.getClass().getSimpleName()",
        "class A:\n    _rows = 1\n    def f(self):\n        return self._rows",
        '"""org.apache.spark.sql.types.LongType says it."""',
        "os._exit(1)",
    ],
)
def test_what_is_public_or_ones_own_is_not(source: str) -> None:
    tree = ast.parse(source)
    assert list(_private(tree, _defined(tree))) == []


def _private(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of what belongs into the room; `own` are names that headgate itself defines."""
    documented = {id(text) for text in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, f"imports {name}") for name in names if _is_private(name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = dict.fromkeys(_imported(node.module, node.names))
            yield from ((node.lineno, f"imports {name}") for name in imported)
        elif isinstance(node, ast.Attribute):
            if _is_sparks(node.attr, own):
                yield node.lineno, f"uses {node.attr}"
            elif node.attr == "apache":
                yield node.lineno, "uses org.apache"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_sparks(str(name.value), own):
                yield node.lineno, f"uses {name.value}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documented:
                yield from ((node.lineno, f"names {n}") for n in _CLASS.findall(node.value))


def _imported(module: str, names: Iterable[ast.alias]) -> Iterator[str]:
    if _is_private(module):
        yield module
        return
    for alias in names:
        whole = f"{module}.{alias.name}"
        if module == "headgate.spark.jvm.gateway":
            if alias.name in _DOORS:
                yield whole
        elif module in PUBLIC:
            hidden = alias.name.startswith("_")
            if hidden or (whole not in PUBLIC and _is_module(module, alias.name)):
                yield whole


def _is_private(module: str) -> bool:
    return module.partition(".")[0] in ("pyspark", "py4j") and module not in PUBLIC


@functools.cache
def _is_module(package: str, name: str) -> bool:
    found = importlib.util.find_spec(package)
    is_package = found is not None and found.submodule_search_locations is not None
    return is_package and importlib.util.find_spec(f"{package}.{name}") is not None


def _is_sparks(name: str, own: set[str]) -> bool:
    if _SPARKS.fullmatch(name):
        return True
    hidden = name.startswith("_") and not name.startswith("__")
    return hidden and name not in own and name not in _OF_PYTHON


def _defined(tree: ast.AST) -> set[str]:
    """Return all names that are given to something in a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the texts that are statements: docstrings, and those under a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
