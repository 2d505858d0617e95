"""Turns an ordinary PySpark query into operators, and the plans below and above them.

Belongs here: reading Spark's analysed plan node by node, one module per stateful kind, and saying in
PySpark's words what cannot be run. Does not belong here: running anything, private classes of Spark
(jvm), what an operator does with its rows (headgate.operators).
"""
