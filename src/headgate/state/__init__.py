"""Stores the state of key groups: tables, changelog, checkpoint, and the files of all three.

Belongs here: tables in memory and in files (table, arena, heap, tiers), the changelog and its snapshots,
the checkpoint with its manifests, intents and control files, the places that hold a checkpoint (place,
objects, hdfs), and the directories of runs (runs). A state has a name, its token. Does not belong here:
the meaning of a row (operators), the owner of a key group (`headgate.core.assignment`), anything of
Spark, except the copies of Spark's log that a manifest holds (carried).
"""
