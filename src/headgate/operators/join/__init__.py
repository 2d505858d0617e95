"""Joins two streams over the key groups of one slot.

Belongs here: the spec of a join (spec), its operator and row layout (operator), the matching of records
(match) and its loops (kernels). Does not belong here: the tables that hold rows (tables), the reading of
a query's join condition (spark).
"""
