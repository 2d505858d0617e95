"""Holds the tables of key groups on a host: one buffer per group, and the stores of these buffers.

Belongs here: the layout of a group's bytes, its lookups, its undo log and its token; memory-mapped files
of a host (arena), process memory (heap), the choice between memory and disk (tiers). Does not belong
here: files of a checkpoint (checkpoint), the meaning of a row (operators), the owner of a group
(core.assignment), anything of Spark.
"""
