"""Formats and tables that Spark writes to: found by name, and what they can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, each, java_class, jvm, seq, string_map

_SQL = "org.apache.spark.sql"
_CATALOG = f"{_SQL}.connector.catalog"
_V2 = f"{_SQL}.execution.datasources.v2"


def is_a(spark: SparkSession, value: Jvm, name: str) -> bool:
    """Return whether a Java object is of the class or interface of that full name."""
    return bool(is_instance_of(spark.sparkContext._gateway, value, name))


def writes_streams(spark: SparkSession, table: Jvm) -> bool:
    """Return whether a table of a newer source (DSv2) takes streams."""
    return is_a(spark, table, f"{_CATALOG}.SupportsWrite") and can(spark, table, "STREAMING_WRITE")


def can(spark: SparkSession, table: Jvm, capability: str) -> bool:
    """Return whether a table has a capability, by its name."""
    known = java_class(spark, f"{_CATALOG}.TableCapability")
    return bool(table.capabilities().contains(getattr(known, capability)))


def clustering(spark: SparkSession, columns: Sequence[str]) -> dict[str, str]:
    """Return the option by which Spark's writer tells a sink what to cluster by."""
    utils = jvm(spark).org.apache.spark.sql.execution.datasources.DataSourceUtils
    return {utils.CLUSTERING_COLUMNS_KEY(): utils.encodePartitioningColumns(seq(spark, columns))}


class Format:
    """Finds a format by its name as ``DataStreamWriter`` does; raises Spark's errors.

    Attributes
    ----------
    older : bool    Whether Spark writes streams of it through its older interface, whatever it can.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark, self._name = spark, name
        self._conf: Jvm = spark._jsparkSession.sessionState().conf()
        sources = jvm(spark).org.apache.spark.sql.execution.datasources
        provider = sources.DataSource.lookupDataSource(name, self._conf)
        self._provider: Jvm = provider.newInstance()
        disabled = [
            source.strip() for source in str(self._conf.disabledV2StreamingWriters()).split(",")
        ]
        self.older = provider.getCanonicalName() in disabled or self._is(f"{_V2}.FileDataSourceV2")

    def _is(self, name: str) -> bool:
        return is_a(self._spark, self._provider, name)

    @cached_property
    def makes_sinks(self) -> bool:
        """Return whether it has a streaming sink of the older interface."""
        return self._is(f"{_SQL}.sources.StreamSinkProvider")

    @cached_property
    def is_files(self) -> bool:
        """Return whether Spark's own file sink writes it."""
        kinds = (f"{_SQL}.execution.datasources.FileFormat", f"{_V2}.FileDataSourceV2")
        return any(map(self._is, kinds))

    def appends(self, table: Jvm | None) -> bool:
        """Return whether a batch can be appended to it; `table` is what `table` gave."""
        older = self._is(f"{_SQL}.sources.CreatableRelationProvider")
        return older or (table is not None and can(self._spark, table, "BATCH_WRITE"))

    def table(self, options: Mapping[str, str], schema: Jvm) -> Jvm | None:
        """Return the table that a newer source (DSv2) gives, None of an older one."""
        if not self._is(f"{_CATALOG}.TableProvider"):
            return None
        java, provider = jvm(self._spark), self._provider
        utils = java.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Utils
        if self._is(f"{_V2}.python.PythonDataSourceV2"):
            provider.setShortName(self._name)
        of_session = utils.extractSessionConfigs(provider, self._conf)
        names = {key.lower() for key in options}
        keys = [pair._1() for pair in each(of_session)]
        merged = {k: of_session.apply(k) for k in keys if k.lower() not in names} | dict(options)
        try:
            outside = provider.supportsExternalMetadata()
        except Py4JError:  # not of its own: the interface says no
            outside = False
        given_schema = java.scala.Option.apply(schema if outside else None)
        return utils.getTableFromProvider(provider, string_map(self._spark, merged), given_schema)


class NamedTable:
    """Finds a table by the name that a user wrote; raises Spark's errors about the name.

    Attributes
    ----------
    parts : list of str    Parts of the name: catalog and database, if they are there, and table.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._state: Jvm = spark._jsparkSession.sessionState()
        self._parts: Jvm = self._state.sqlParser().parseMultipartIdentifier(name)
        self.parts: list[str] = list(each(self._parts))

    @property
    def is_temporary_view(self) -> bool:
        """Return whether it is no table but a view of this session."""
        return bool(self._state.catalog().isTempView(self._parts))

    @cached_property
    def at(self) -> tuple[Jvm, Jvm]:
        """Its catalog, and what it is called in there."""
        pair = self._state.analyzer().CatalogAndIdentifier().unapply(self._parts).get()
        return pair._1(), pair._2()

    @cached_property
    def full(self) -> str:
        """Its name with catalog and database, as SQL takes it, whichever are current by then."""
        catalog, identifier = self.at
        return ".".join(
            quoted(part) for part in (catalog.name(), *identifier.namespace(), identifier.name())
        )

    @property
    def exists(self) -> bool:
        """Return whether its catalog has it."""
        catalog, identifier = self.at
        return bool(catalog.tableExists(identifier))

    def loaded(self) -> Jvm:
        """Return the table."""
        catalog, identifier = self.at
        return catalog.loadTable(identifier)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def of_session_catalog(spark: SparkSession, table: Jvm) -> Jvm | None:
    """Return a table's entry in Spark's own catalog; None for a table of another catalog."""
    older = ("V1Table", "V2TableWithV1Fallback")
    if any(is_a(spark, table, f"{_CATALOG}.{name}") for name in older):
        return table.v1Table()
    return None
