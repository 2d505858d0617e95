"""Finds formats and tables that Spark writes to by name, and reads their capabilities."""

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
    """Return whether a Java object is an instance of the class or interface with that full name."""
    return bool(is_instance_of(spark.sparkContext._gateway, value, name))


def writes_streams(spark: SparkSession, table: Jvm) -> bool:
    """Return whether a table of a newer source (DSv2) supports streaming writes."""
    return is_a(spark, table, f"{_CATALOG}.SupportsWrite") and can(spark, table, "STREAMING_WRITE")


def can(spark: SparkSession, table: Jvm, capability: str) -> bool:
    """Return whether a table has a capability, by its name."""
    known = java_class(spark, f"{_CATALOG}.TableCapability")
    return bool(table.capabilities().contains(getattr(known, capability)))


def clustering(spark: SparkSession, columns: Sequence[str]) -> dict[str, str]:
    """Return the option in which Spark's writer passes clustering columns to a sink."""
    utils = jvm(spark).org.apache.spark.sql.execution.datasources.DataSourceUtils
    return {utils.CLUSTERING_COLUMNS_KEY(): utils.encodePartitioningColumns(seq(spark, columns))}


class Format:
    """Finds a format by its name as ``DataStreamWriter`` does; raises Spark's errors.

    Attributes
    ----------
    older : bool    Whether Spark always writes its streams through the older interface.
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
        """Return whether the format has a streaming sink of the older interface."""
        return self._is(f"{_SQL}.sources.StreamSinkProvider")

    @cached_property
    def is_files(self) -> bool:
        """Return whether Spark's own file sink writes the format."""
        kinds = (f"{_SQL}.execution.datasources.FileFormat", f"{_V2}.FileDataSourceV2")
        return any(map(self._is, kinds))

    def appends(self, table: Jvm | None) -> bool:
        """Return whether Spark can append a batch to the format; `table`: result of `self.table`."""
        older = self._is(f"{_SQL}.sources.CreatableRelationProvider")
        return older or (table is not None and can(self._spark, table, "BATCH_WRITE"))

    def table(self, options: Mapping[str, str], schema: Jvm) -> Jvm | None:
        """Return the table of a newer source (DSv2); None for an older source."""
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
        except Py4JError:  # the provider does not override the method, whose default is false
            outside = False
        given_schema = java.scala.Option.apply(schema if outside else None)
        return utils.getTableFromProvider(provider, string_map(self._spark, merged), given_schema)


class NamedTable:
    """Finds a table by the name that a user wrote; raises Spark's errors about the name.

    Attributes
    ----------
    parts : list of str    Parts of the name: catalog and database, if the name has them, and table.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._state: Jvm = spark._jsparkSession.sessionState()
        self._parts: Jvm = self._state.sqlParser().parseMultipartIdentifier(name)
        self.parts: list[str] = list(each(self._parts))

    @property
    def is_temporary_view(self) -> bool:
        """Return whether the name is that of a temporary view of this session."""
        return bool(self._state.catalog().isTempView(self._parts))

    @cached_property
    def at(self) -> tuple[Jvm, Jvm]:
        """The table's catalog, and its identifier there."""
        pair = self._state.analyzer().CatalogAndIdentifier().unapply(self._parts).get()
        return pair._1(), pair._2()

    @cached_property
    def full(self) -> str:
        """The table's full name for SQL, with catalog and database of the first access."""
        catalog, identifier = self.at
        return ".".join(
            quoted(part) for part in (catalog.name(), *identifier.namespace(), identifier.name())
        )

    @property
    def exists(self) -> bool:
        """Return whether the catalog has the table."""
        catalog, identifier = self.at
        return bool(catalog.tableExists(identifier))

    def loaded(self) -> Jvm:
        """Return the table."""
        catalog, identifier = self.at
        return catalog.loadTable(identifier)


def quoted(name: str) -> str:
    """Return a name, which may have any characters, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def of_session_catalog(spark: SparkSession, table: Jvm) -> Jvm | None:
    """Return a table's entry in Spark's own catalog; None for a table of another catalog."""
    older = ("V1Table", "V2TableWithV1Fallback")
    if any(is_a(spark, table, f"{_CATALOG}.{name}") for name in older):
        return table.v1Table()
    return None
