"""Tables of key groups in memory: one buffer for each group, and the stores that hold such buffers.

Belongs here: how bytes of a group are laid out, found, undone and named by a token; memory-mapped
files of a host (arena), this process's own memory (heap), memory and disk (tiers). Does not belong
here: files of a checkpoint (checkpoint), the meaning of a row (operators), the owner of a group
(core.assignment), anything of Spark.
"""
