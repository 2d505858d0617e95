"""What of a query would run how, before it runs."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate.core.errors import UnsupportedQuery
from headgate.engines.spark.gateway import require_classic
from headgate.engines.spark.logical import read
from headgate.operators.build import row_bytes


def explain(df: DataFrame, outputMode: str = "append") -> str:
    """Return, a line each, what of `df` runs elastically, what stays in Catalyst, what cannot run.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame of a classic session.
    outputMode : str
        append, update or complete.
    """
    require_classic(df.sparkSession)
    try:
        query = read(df, outputMode)
    except UnsupportedQuery as error:
        return f"not elastic   {error}"
    lines = [
        f"elastic       {op.what}; about {row_bytes(op.spec)} B per entry" for op in query.operators
    ]
    if not query.operators:
        lines.append("elastic       nothing: the query is stateless, Catalyst runs all of it")
    above = ", ".join(query.notes) or "nothing"
    lines.append(f"catalyst      all below the first operator; above: {above} (unchanged)")
    if any(len(chain) > 1 for chain in query.chains):
        lines.append("              what stands between two operators (unchanged)")
    lines.append("not elastic   none")
    return "\n".join(lines)
