"""Reads and writes the files from which a job restarts, on a POSIX path, an object store or HDFS.

Belongs here: a checkpoint as a whole (checkpoint), manifests (manifest), changelogs (changelog),
removal of files that no restart needs (garbage), requests to a running query (command_files), the
copy of a journal on a store (shipping), and the port for all files (place), with its forms for
stores (objects, hdfs) and for stores that packages bring (own_store). Does not belong here: tables in
memory (tables), the moment of a commit (spark.step), anything of Spark.

A user's own store imports `CheckpointStore` from here; see docs/own-store.md.
"""

from headgate.checkpoint.own_store import CheckpointStore

__all__ = ["CheckpointStore"]
