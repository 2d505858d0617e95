"""Reproduces PSPS's tables and figures: applications, loads, runs, one module per table.

A figure of the paper that shows a table's runs over time is that table's picture. Every row has the
paper's four numbers beside ours, in `paper_` columns; a row without them is not in the paper.
"""
