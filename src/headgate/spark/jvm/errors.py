"""Names the exceptions of calls into the JVM, for the rest of headgate to catch."""

from __future__ import annotations

from py4j.protocol import Py4JError as JvmError
from py4j.protocol import Py4JJavaError as JavaError
from pyspark.errors import PySparkException

__all__ = ["JavaError", "JvmError", "SaidBySpark"]

# JvmError: the JVM gave no answer, or an error for an answer. JavaError, one of these: Java raised it.


class SaidBySpark(PySparkException):
    """A headgate error that programs for PySpark catch: headgate's words, Spark's error condition.

    Spark's own error is its ``__cause__``.
    """

    def __str__(self) -> str:
        return str(self.args[0])

    def getCondition(self) -> str | None:
        """Return the condition of Spark's error; None where there is none."""
        cause = self.__cause__
        return cause.getCondition() if isinstance(cause, PySparkException) else None

    def getErrorClass(self) -> str | None:
        """Return the condition under its older name."""
        return self.getCondition()

    def getSqlState(self) -> str | None:
        """Return the SQLSTATE of Spark's error; None where there is none."""
        cause = self.__cause__
        return cause.getSqlState() if isinstance(cause, PySparkException) else None
