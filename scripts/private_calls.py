"""Record which methods of Spark's JVM headgate calls, and write them down for every minor release.

As a plugin of pytest it records what the tests that run call::

    PYTHONPATH=scripts pytest -p private_calls --calls-to calls.txt tests/spark/test_answers.py

As a program it adds recordings to the table that `headgate.spark.jvm.contract` checks, and asks each
minor's JVM whether it has them. A folder is one that `make matrix` makes, with another PySpark::

    python scripts/private_calls.py .spark/4.1 .spark/4.2 -- calls.txt ...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass, JavaMember
from pyspark import SparkContext

from headgate.spark.jvm import contract

if TYPE_CHECKING:
    import pytest

_OURS = f"{os.sep}headgate{os.sep}"
_DELTA = "org.apache.spark.sql.delta."
"""Another jar's, which bears Spark's name."""
_OFTEN = 8
"""Objects of how many calls at one place are asked for their class: a node is not always the same."""

_ASK = """
import sys
from headgate.spark.jvm import contract
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.sessions import jvm_alone
java = jvm_alone()
wanted = [contract.PrivateCall.read(line) for line in sys.stdin]
print(adapter().name)
for call in contract.absent(java, wanted):
    print(call.owner, call.member, call.arguments, sep="\t")
"""


# --- a plugin ----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option that switches recording on."""
    parser.addoption("--calls-to", help="file that the calls into Spark's JVM are added to")


def pytest_configure(config: pytest.Config) -> None:
    """Record from here on, if that was asked for."""
    found = config.getoption("--calls-to")
    if found is not None:
        _record_to(Path(str(found)))


def _record_to(file: Path) -> None:
    places: Counter[tuple[str, int, str]] = Counter()
    known: set[str] = set()
    called, made = JavaMember.__call__, JavaClass.__call__

    def note(owner: str, member: str, arguments: int) -> None:
        line = f"{owner}\t{member}\t{arguments}"
        sparks = owner.startswith("org.apache.spark.") and not owner.startswith(_DELTA)
        if sparks and line not in known:
            known.add(line)
            with file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")

    def ours(member: str) -> bool:
        frame = sys._getframe(2)
        place = (frame.f_code.co_filename, frame.f_lineno, member)
        places[place] += 1
        return _OURS in place[0] and places[place] <= _OFTEN

    def call(self: Any, *args: Any) -> Any:
        if self.name != "getClass" and ours(self.name):
            if self.container is None:  # of a class, whose name stands in the place of an object's
                note(str(self.target_id).removeprefix("z:"), self.name, len(args))
            else:
                for owner in declaring(self.container, self.name, len(args)):
                    note(owner, self.name, len(args))
        return called(self, *args)

    def make(self: Any, *args: Any) -> Any:
        if ours("<init>"):
            note(self._fqn, "<init>", len(args))
        return made(self, *args)

    def declaring(target: Any, member: str, arguments: int) -> list[str]:
        """Return the classes that declare a method of an object."""
        kind = called(target.getClass)
        all_of_it = contract.signatures(SparkContext._jvm, kind)
        return [owner for owner, *rest in all_of_it if rest == [member, arguments]]

    JavaMember.__call__ = call
    JavaClass.__call__ = make


# --- a program ---------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Add recordings to the table; the first arguments are folders with other minors."""
    cut = arguments.index("--")
    lines = {line for name in arguments[cut + 1 :] for line in Path(name).read_text().splitlines()}
    lines |= {f"{call.owner}\t{call.member}\t{call.arguments}" for call in contract.calls()}
    there: dict[str, list[str]] = {line: [] for line in sorted(lines)}
    for folder in [*arguments[:cut], ""]:
        minor, lacking = _asked(folder, there)
        for line, minors in there.items():
            if line not in lacking:
                minors.append(minor)
    text = "".join(f"{line}\t{' '.join(minors)}\n" for line, minors in there.items())
    contract.TABLE.write_text(contract.HEADER + text, encoding="utf-8")


def _asked(folder: str, lines: dict[str, list[str]]) -> tuple[str, set[str]]:
    """Return which minor a folder holds, and which lines its JVM lacks."""
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    found = subprocess.run(
        [sys.executable, "-c", _ASK],
        input="\n".join(lines),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    minor, *lacking = found.stdout.splitlines()
    return minor, set(lacking)


if __name__ == "__main__":
    main(sys.argv[1:])
