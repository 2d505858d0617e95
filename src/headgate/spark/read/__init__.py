"""Turns an ordinary PySpark query into operators, and the plans below and above them.

Belongs here: reading Spark's analysed plan node by node, with one module for each kind of stateful node,
and refusals in PySpark's words. Does not belong here: running a query, private classes of Spark (jvm),
the work of an operator on its rows (headgate.operators).
"""
