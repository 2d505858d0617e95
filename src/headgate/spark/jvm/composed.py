"""Composes methods of the JVM into one method, because a call through py4j costs 0.1 to 0.3 ms.

A result in Python costs a second call when Python frees it. `java.lang.invoke` composes the methods, so
they run in the JVM without Python between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, java_class


class Composer:
    """Creates method handles of one session's JVM.

    Parameters
    ----------
    spark : SparkSession
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._handles = java_class(spark, "java.lang.invoke.MethodHandles")
        self._lookup = self._handles.publicLookup()

    def method(self, owner: str, beginning: str) -> Jvm:
        """Return the handle of a public method; for an instance method its first argument is the object.

        Parameters
        ----------
        owner : str
            Full name of the class that declares the method.
        beginning : str
            The method's name, a bracket, and enough of its parameters to identify it.
        """
        methods = self._class(owner).getMethods()
        (found,) = (one for one in methods if f" {owner}.{beginning}" in one.toString())
        return self._lookup.unreflect(found)

    def bound(self, handle: Jvm, place: int, *values: Any) -> Jvm:
        """Return the handle with `values` as fixed arguments from position `place` on."""
        return self._handles.insertArguments(handle, place, self._array(values))

    def then(self, first: Jvm, second: Jvm) -> Jvm:
        """Return a handle that calls `second`, of one argument, on the result of `first`."""
        taken = first.type().returnType()
        to = second.asType(second.type().changeParameterType(0, taken))
        return self._handles.filterReturnValue(first, to)

    def closing(self, use: Jvm, close: Jvm) -> Jvm:
        """Return a handle that calls `use` on one object, and calls `close` on it after an error."""
        error = self._class("java.lang.Throwable")
        void, taken = use.type().returnType(), use.type().parameterType(0)
        close = close.asType(close.type().changeParameterType(0, taken))
        raised = self._handles.throwException(void, error)
        raised = self._handles.dropArguments(raised, 1, self._classes(taken))
        closed = self._handles.dropArguments(close, 0, self._classes(error))
        return self._handles.catchException(use, error, self._handles.foldArguments(raised, closed))

    def call(self, handle: Jvm) -> Callable[[], None]:
        """Return a function that calls a handle without arguments and without a result."""
        nothing = java_class(self._spark, "java.util.ArrayList")()
        invoke = handle.invokeWithArguments

        def run() -> None:
            invoke(nothing)

        return run

    def _class(self, name: str) -> Jvm:
        return java_class(self._spark, "org.apache.spark.util.Utils").classForName(
            name, True, False
        )

    def _classes(self, one: Jvm) -> Jvm:
        made = self._new_array("java.lang.Class", 1)
        made[0] = one
        return made

    def _array(self, values: tuple[Any, ...]) -> Jvm:
        made = self._new_array("java.lang.Object", len(values))
        for place, value in enumerate(values):
            made[place] = value
        return made

    def _new_array(self, kind: str, count: int) -> Jvm:
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        return gateway.new_array(java_class(self._spark, kind), count)
