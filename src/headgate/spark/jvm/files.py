"""Resolves and lists paths in Spark's JVM, through Hadoop's file systems."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, jvm


@dataclass(frozen=True)
class Uri:
    """Holds a URI of Hadoop's, in parts and as a whole."""

    scheme: str | None
    path: str
    text: str
    """The whole URI."""


class HadoopPath:
    """Accesses a path on any file system that Spark knows.

    `*parts` (str): a path as a user writes it, or a directory and a name in it; a text that is no
    path raises Java's own error.
    """

    def __init__(self, spark: SparkSession, *parts: str) -> None:
        self._conf: Jvm = spark._jsparkSession.sessionState().newHadoopConf()
        self._java = jvm(spark)
        self._gateway: Jvm = spark.sparkContext._gateway
        self._path: Jvm = self._java.org.apache.hadoop.fs.Path(*parts)

    @property
    def uri(self) -> Uri:
        """The path as the user wrote it."""
        return _uri(self._path.toUri())

    def resolved(self) -> Uri:
        """Return the path with its file system and directory; raises Java's own errors."""
        system = self._path.getFileSystem(self._conf)
        return _uri(system.makeQualified(self._path).toUri())

    def exists(self) -> bool:
        """Return whether the JVM sees a file or directory at the path."""
        return bool(self._path.getFileSystem(self._conf).exists(self._path))

    def names(self) -> list[str]:
        """Return the names in a directory; empty if the directory does not exist."""
        system = self._path.getFileSystem(self._conf)
        if not system.exists(self._path):
            return []
        java = self._java
        paths = java.org.apache.hadoop.fs.FileUtil.stat2Paths(system.listStatus(self._path))
        # read all names as one text: calls for a thousand files take a second
        objects = self._gateway.new_array(java.java.lang.Object, len(paths))
        java.java.lang.System.arraycopy(paths, 0, objects, 0, len(paths))
        text = str(java.java.util.Arrays.toString(objects))
        return [path.rpartition("/")[2] for path in text[1:-1].split(", ") if path]


def path_of(spark: SparkSession, location: Jvm) -> str:
    """Return the path of a Java URI as Hadoop writes it."""
    return str(jvm(spark).org.apache.hadoop.fs.Path(location).toString())


def default_file_system(spark: SparkSession) -> Uri:
    """Return the URI of the file system in which Spark looks for a path without a scheme."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return _uri(jvm(spark).org.apache.hadoop.fs.FileSystem.getDefaultUri(conf))


def _uri(java: Jvm) -> Uri:
    scheme = java.getScheme()
    return Uri(None if scheme is None else str(scheme), str(java.getPath()), str(java.toString()))
