"""pandas frames from Arrow and back, as PySpark's own workers make and read them.

Used in Python workers: a processor gets the very frames that it gets under plain Spark. A file of its
own, since other workers need not import it.
"""

from __future__ import annotations

from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion

__all__ = ["ArrowBatchTransformer", "PandasToArrowConversion"]
