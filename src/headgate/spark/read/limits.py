"""Lists options that limit a source's batches; records beyond the limit wait unseen in the source."""

from __future__ import annotations

from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.streams import option_of, streams_of

_LIMITS = (
    "maxOffsetsPerTrigger",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "streaming-max-files-per-micro-batch",
    "streaming-max-rows-per-micro-batch",
    "batch_rows",
)
"""Options of Spark's sources, Delta's, Iceberg's and headgate's own. `rate`'s ``rowsPerSecond`` is no
such limit: it sets how many records there are, and none of them waits."""


def source_limits(plan: Jvm) -> dict[str, str]:
    """Return the options of a plan's sources that limit how much a batch reads, by name.

    `plan`: analysed.
    """
    limits: dict[str, str] = {}
    for leaf in streams_of(plan):
        for name in _LIMITS:
            value = option_of(leaf, name)
            if value is not None:
                limits[name] = value if name not in limits else f"{limits[name]}, {value}"
    return limits
