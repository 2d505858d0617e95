"""Reproduces PSPS's tables and figures: applications, loads, runs, one module per table.

A figure of the paper that shows a table's runs over time is drawn as that table's picture. A row has the
paper's four numbers in `paper_` columns; a row without them is not in the paper.
"""
