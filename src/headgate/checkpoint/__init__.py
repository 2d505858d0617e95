"""Files from which a job starts again, on a POSIX path, an object store or HDFS.

Belongs here: manifests, changelogs, command files of people, the journal's way to a store, removal of
files that no restart needs, and the port that all of these files go through. Does not belong here:
tables in memory (tables), the moment of a commit (spark.step), anything of Spark.
"""
