"""Returns the feed for a source of a user's plan."""

from __future__ import annotations

from headgate.core.errors import UnsupportedQuery
from headgate.core.installed import SOURCES, installed
from headgate.spark.jvm.gateway import Jvm, class_name
from headgate.spark.jvm.streams import options_of
from headgate.spark.read.arrival import is_kafka
from headgate.spark.realtime.clocked import ClockFeed, RateRows
from headgate.spark.realtime.feed import SourceFeed
from headgate.spark.realtime.kafka_feed import KafkaFeed


def feed_of(leaf: Jvm) -> SourceFeed:
    """Return the feed of a streaming leaf of a plan.

    Raises `UnsupportedQuery`: its source, or one of its options, cannot be read in real time.
    """
    if is_kafka(leaf):
        return KafkaFeed.of(options_of(leaf))
    is_files = class_name(leaf) != "StreamingRelationV2"
    name = "files" if is_files else str(leaf.sourceName())
    plugins = installed(SOURCES)
    if name in plugins:
        source = plugins[name].load(type, "class")
        if hasattr(source, "feed"):
            with plugins[name].blamed("read in real time"):
                feed: SourceFeed = source.feed(options_of(leaf))
            return feed
    if name == "rate":
        return ClockFeed(RateRows.of(options_of(leaf)), only_here=True)
    what = "a source of files" if is_files else f'format "{name}"'
    msg = (
        f"{what} cannot be read in real time, which reads kafka, rate, and sources of packages that "
        'have a feed; leave out trigger(realTime=...), or add .fallback("micro-batch").'
    )
    raise UnsupportedQuery(msg)
