"""What a call into the JVM raises, under names that the rest of headgate catches."""

from __future__ import annotations

from py4j.protocol import Py4JError as JvmError
from py4j.protocol import Py4JJavaError as JavaError

__all__ = ["JavaError", "JvmError"]

# JvmError: the JVM gave no answer, or an error for an answer. JavaError, one of these: Java raised it.
