"""State of key groups: tables, stores, changelog, checkpoint.

Belongs here: where bytes live, how they get a name (token), how they are brought back. Does not
belong here: what a row means (operators), who owns a group (core.assignment), anything of Spark.
"""
