"""Which functions of headgate are reached from where, read off the sources.

No type is known, so a method counts as reached if its class is (somebody names it) and somebody calls or
reads an attribute of its name; and a function of a module that is loaded by a text likewise. That is more
than what can run, never less: "not reached" is certain, "reached" says that somebody could.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "src", ROOT / "demo" / "src", ROOT / "lab" / "src")

_COMMANDS = {"command", "callback"}
"""Attributes that a function is decorated with to become one of the command line."""
_DOTTED = re.compile(r"headgate(_demo|_lab)?(\.\w+)+\.?")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module:
    """One module: what it defines, and what the names in it mean."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.defined: dict[str, Definition] = {}
        self.meaning: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, Definition):
                self.defined[node.name] = node
        for part in ast.walk(self.tree):
            if isinstance(part, ast.Import):
                for alias in part.names:
                    self.meaning[alias.asname or alias.name] = alias.name
            elif isinstance(part, ast.ImportFrom) and part.module:
                for alias in part.names:
                    self.meaning[alias.asname or alias.name] = f"{part.module}.{alias.name}"


class Reach:
    """What is reached from some names, without going through some packages.

    Parameters
    ----------
    roots : iterable of str
        Modules, or functions and classes with their module; of classes all public methods.
    without : iterable of str
        Packages at which the search ends.
    """

    def __init__(self, roots: Iterable[str], without: Iterable[str] = ()) -> None:
        self._without = tuple(without)
        self._modules = _modules()
        self.found: set[str] = set()
        self._owners: dict[str, list[str]] = defaultdict(list)
        self._attributes: set[str] = set()
        self._waiting: list[str] = []
        for root in roots:
            self._reach(root)
            module, name = self._split(root)
            node = None if module is None else module.defined.get(name)
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, Function) and not method.name.startswith("_"):
                    self._reach(f"{root}.{method.name}")
        while self._waiting:
            self._follow(self._waiting.pop())

    def __contains__(self, dotted: str) -> bool:
        return dotted in self.found

    def _reach(self, dotted: str) -> None:
        if dotted in self.found or not dotted.startswith("headgate"):
            return
        if any(dotted == p or dotted.startswith(f"{p}.") for p in self._without):
            return
        module, name = self._split(dotted)
        if module is None:
            return
        if name and name.partition(".")[0] not in module.defined:
            meant = module.meaning.get(name)
            self._reach(module.name)
            if meant is not None:
                self._reach(meant)
            self.found.add(dotted)
            return
        self.found.add(dotted)
        self._waiting.append(dotted)
        if name:
            self._reach(module.name)

    def _split(self, dotted: str) -> tuple[Module | None, str]:
        """Return the module that a dotted name begins with, and the rest."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            module = self._modules.get(".".join(parts[:length]))
            if module is not None:
                return module, ".".join(parts[length:])
        return None, ""

    def _follow(self, dotted: str) -> None:
        module, name = self._split(dotted)
        assert module is not None
        if not name:
            self._follow_module(module)
            return
        first, _, method = name.partition(".")
        node = module.defined[first]
        if isinstance(node, ast.ClassDef) and not method:
            self._follow_class(module, node)
        else:
            if isinstance(node, ast.ClassDef):
                self._reach(f"{module.name}.{first}")
                node = _methods(node).get(method, ast.Pass())
            self._look_at(module, node)

    def _follow_module(self, module: Module) -> None:
        package = module.name.rpartition(".")[0]
        if package:
            self._reach(package)
        for node in module.tree.body:
            if isinstance(node, Definition):
                commands = [d for d in node.decorator_list if _attribute(d) in _COMMANDS]
                if commands:
                    self._reach(f"{module.name}.{node.name}")
            elif not _is_for_types(node):
                self._look_at(module, node)

    def _follow_class(self, module: Module, node: ast.ClassDef) -> None:
        for part in (*node.bases, *node.keywords, *node.decorator_list):
            self._look_at(module, part)
        for part in node.body:
            if not isinstance(part, Function):
                self._look_at(module, part)
        for name in _methods(node):
            self._offer(name, f"{module.name}.{node.name}.{name}")
            if name.startswith("__"):
                self._reach(f"{module.name}.{node.name}.{name}")
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                self._offer(part.target.id, f"{module.name}.{node.name}.{part.target.id}")

    def _look_at(self, module: Module, node: ast.AST) -> None:
        """Reach whatever `node` names."""
        for part in _without_annotations(node):
            if isinstance(part, ast.Name):
                self._named(module, part.id)
            elif isinstance(part, ast.Attribute):
                meant = _chain(part)
                head, _, rest = meant.partition(".")
                if rest and head in module.meaning:
                    self._reach(f"{module.meaning[head]}.{rest}")
                self._called(part.attr)
            elif isinstance(part, ast.Import):
                for alias in part.names:
                    self._reach(alias.name)
            elif isinstance(part, ast.ImportFrom) and part.module:
                self._reach(part.module)
                for alias in part.names:
                    if f"{part.module}.{alias.name}" in self._modules:
                        self._reach(f"{part.module}.{alias.name}")
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                if _DOTTED.fullmatch(part.value):
                    self._loaded(part.value)

    def _named(self, module: Module, name: str) -> None:
        if name in module.defined:
            self._reach(f"{module.name}.{name}")
        elif name in module.meaning:
            self._reach(module.meaning[name])

    def _called(self, attribute: str) -> None:
        if attribute in self._attributes:
            return
        self._attributes.add(attribute)
        for dotted in self._owners[attribute]:
            self._reach(dotted)

    def _offer(self, name: str, dotted: str) -> None:
        """Reach `dotted` once somebody reads an attribute `name`."""
        self._owners[name].append(dotted)
        if name in self._attributes:
            self._reach(dotted)

    def _loaded(self, text: str) -> None:
        """Reach a module that is loaded by its name, or all below a name that ends in a dot."""
        for name, module in self._modules.items():
            if name == text or (text.endswith(".") and name.startswith(text)):
                self._reach(name)
                if name in self.found:
                    for defined in module.defined:
                        self._offer(defined, f"{name}.{defined}")


@functools.cache
def _modules() -> dict[str, Module]:
    found = {}
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
    return found


def _methods(node: ast.ClassDef) -> dict[str, ast.AST]:
    return {part.name: part for part in node.body if isinstance(part, Function)}


def _attribute(decorator: ast.expr) -> str:
    of = decorator.func if isinstance(decorator, ast.Call) else decorator
    return of.attr if isinstance(of, ast.Attribute) else ""


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _chain(node: ast.expr) -> str:
    """Return ``a.b.c`` of an attribute of names, otherwise an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _without_annotations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node` and all below it, without what only says of which type something is."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not _is_for_types(part):
                yield from _without_annotations(part)
