"""Names the exceptions of calls into the JVM, for the rest of headgate to catch."""

from __future__ import annotations

from py4j.protocol import Py4JError as JvmError
from py4j.protocol import Py4JJavaError as JavaError
from pyspark.errors import PySparkException

__all__ = ["JavaError", "JvmError", "SaidBySpark", "text_of"]

# JvmError: the JVM gave no answer, or an error. JavaError, a subclass: Java raised an exception.


def text_of(error: BaseException) -> str:
    """Return ``str(error)``; for an error of Java's only the first call reads the JVM.

    The text has the stack of a job, more than 8 kB, for which py4j takes 44 ms (note 0181), and the
    wording of a failure reads the text a dozen times.
    """
    if not isinstance(error, JavaError):
        return str(error)
    known = vars(error)
    if _TEXT not in known:
        known[_TEXT] = str(error)
    return str(known[_TEXT])


_TEXT = "headgate_text"


class SaidBySpark(PySparkException):
    """Base of headgate errors that programs catch as PySpark's: headgate's text, Spark's condition.

    Spark's own error is the ``__cause__``.
    """

    def __str__(self) -> str:
        return str(self.args[0])

    def getCondition(self) -> str | None:
        """Return the condition of Spark's error; None if the cause is no error of PySpark's."""
        cause = self.__cause__
        return cause.getCondition() if isinstance(cause, PySparkException) else None

    def getErrorClass(self) -> str | None:
        """Return the condition under its older name."""
        return self.getCondition()

    def getSqlState(self) -> str | None:
        """Return the SQLSTATE of Spark's error; None if the cause is no error of PySpark's."""
        cause = self.__cause__
        return cause.getSqlState() if isinstance(cause, PySparkException) else None
