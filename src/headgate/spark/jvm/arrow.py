"""Schemas from Spark to Arrow and back, as PySpark itself converts them; in driver and workers."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

__all__ = ["from_arrow_schema", "to_arrow_schema"]
