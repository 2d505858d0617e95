"""Checks that a JVM has every private member that headgate calls: a contract per minor release.

The table beside this file has a line for each class of Spark's, method and number of arguments that a run
of the tests has called, with the minor releases that have this method. The check reads the classes'
signatures in the JVM; it takes seconds and needs no session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, jvm

TABLE = Path(__file__).with_name("private_calls.tsv")
"""File of the contract."""

HEADER = "class\tmember\targuments\tminors\n"
"""First line of the table."""

_NEW = "<init>"


@dataclass(frozen=True, order=True)
class PrivateCall:
    """Describes a method of a class of Spark's that headgate calls."""

    owner: str
    """Full name of the class."""
    member: str
    """Name of the method; ``<init>`` for a constructor."""
    arguments: int
    """Number of arguments."""
    minors: tuple[str, ...] = ()
    """The minor releases that have the method, such as ``4.3``."""

    @classmethod
    def read(cls, line: str) -> PrivateCall:
        """Return the call that a line of the table describes."""
        owner, member, arguments, *minors = line.rstrip("\n").split("\t")
        return cls(owner, member, int(arguments), tuple(" ".join(minors).split()))

    def __str__(self) -> str:
        """Return a text such as ``org.apache.spark.sql.Encoders.LONG/0``."""
        return f"{self.owner}.{self.member}/{self.arguments}"


def calls() -> list[PrivateCall]:
    """Return the lines of the table."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    return [PrivateCall.read(line) for line in lines[1:]]


def missing(spark: SparkSession, minor: str) -> list[str]:
    """Return the calls of a minor release, such as ``4.3``, that a session's Spark lacks."""
    known = [known_call for known_call in calls() if minor in known_call.minors]
    return [str(call) for call in absent(jvm(spark), known)]


def absent(java: Jvm, wanted: Iterable[PrivateCall]) -> list[PrivateCall]:
    """Return the calls for which a JVM has no method; `java`: see `sessions.jvm_alone`."""
    known: dict[str, frozenset[tuple[str, int]]] = {}
    missing_calls = []
    for call in wanted:
        if call.owner not in known:
            known[call.owner] = _of_class(java, call.owner)
        if (call.member, call.arguments) not in known[call.owner]:
            missing_calls.append(call)
    return missing_calls


def signatures(java: Jvm, kind: Jvm) -> frozenset[tuple[str, str, int]]:
    """Return declaring class, name and number of arguments of each public method and constructor."""
    listed = java.scala.runtime.ScalaRunTime.stringOf  # one call in place of two for each method
    methods = _parsed(str(listed(kind.getMethods())))
    made = _parsed(str(listed(kind.getConstructors())))
    named = [(*name.rpartition(".")[::2], count) for name, count in methods]
    return frozenset(named + [(name, _NEW, count) for name, count in made])


def _of_class(java: Jvm, owner: str) -> frozenset[tuple[str, int]]:
    try:
        kind = java.java.lang.Class.forName(owner)
    except Py4JError:
        return frozenset()
    return frozenset((name, count) for _, name, count in signatures(java, kind))


def _parsed(texts: str) -> list[tuple[str, int]]:
    """Return full name and number of arguments of ``Array(public T a.B.name(C,D) throws E, ...)``."""
    signatures = []
    for text in texts.removeprefix("Array(").removesuffix(")").split(", "):
        head, opened, rest = text.partition("(")
        if opened:
            parameters = rest.partition(")")[0]
            signatures.append(
                (head.rpartition(" ")[2], parameters.count(",") + 1 if parameters else 0)
            )
    return signatures
