"""Aggregates that people write, by the way in which they are run, over the columns of `answers`.

What Spark leaves to chance (the order of a list, ties, the last bits of a double) is taken out by the
call itself, so that any two right answers are equal.
"""

from __future__ import annotations

import random

import answers
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

KERNEL = [
    "regr_count(id, i)",
    "round(regr_avgx(id, i), 6)",
    "approx_count_distinct(t)",
    "approx_count_distinct(l, 0.02)",
    "approx_count_distinct(d)",
    "approx_count_distinct(r) filter (where i >= 0)",
    "bool_and(o)",
    "bool_or(o) filter (where l > 0)",
    "max_by(r, id) filter (where o)",
    "min_by(array(i, l), id)",
    "max_by(map(t, i), id) filter (where t is not null)",
    "max(to_timestamp_ntz(date_format(e, 'yyyy-MM-dd HH:mm:ss.SSSSSS')))",
    "min(e - timestamp '2026-01-01 00:00:00')",
    "string(max(make_ym_interval(i)))",
    "sum(m) filter (where o)",
    "min_by(a, id) filter (where i > 0)",
]
"""Merged by a kernel of ours."""

MERGED = [
    "round(stddev(d), 6)",
    "round(stddev_pop(i), 6)",
    "round(stddev_samp(l) / 1e12, 6)",
    "round(variance(i), 6)",
    "round(var_pop(s), 3) filter (where i >= 0)",
    "round(skewness(i), 6)",
    "round(kurtosis(id), 6)",
    "round(corr(i, id), 6)",
    "round(covar_pop(i, id), 6)",
    "round(covar_samp(id, b), 6)",
    "round(regr_r2(id, i), 6)",
    "round(regr_slope(id, i), 6)",
    "round(regr_intercept(id, i), 6)",
    "round(regr_sxx(id, i), 6)",
    "round(regr_sxy(id, i), 6)",
    "round(regr_syy(id, i), 6)",
    "bit_and(l)",
    "bit_or(s) filter (where o)",
    "bit_xor(i)",
]
"""Merged by a program made of Spark's expressions."""

KEPT = [
    "sort_array(collect_list(id))",
    "sort_array(collect_list(r))",
    "sort_array(collect_set(i))",
    "sort_array(collect_set(t)) filter (where o)",
    "sort_array(array_agg(l))",
    "listagg(t, ',') within group (order by t)",
    "string_agg(distinct t, '+') within group (order by t)",
    "count(distinct t)",
    "count(distinct i, o)",
    "count(distinct d)",
    "count(distinct t collate utf8_lcase)",
    "count(distinct array(f))",
    "sum(distinct i)",
    "avg(distinct l) filter (where o)",
    "percentile(i, 0.3)",
    "percentile(l, array(0.1, 0.9)) filter (where o)",
    "percentile_approx(d, 0.5)",
    "approx_percentile(m, array(0.25, 0.75), 1000)",
    "percentile_cont(0.4) within group (order by i)",
    "percentile_disc(0.4) within group (order by l desc)",
    "median(i)",
    "mode(t, true)",
    "mode() within group (order by i)",
    "aggregate(histogram_numeric(i, 20), 0D, (all, bar) -> all + bar.y)",
    "try_sum(i)",
    "try_avg(m)",
    "try_sum(l) filter (where i > 0)",
    "sum(e - timestamp '2026-01-01 00:00:00')",
    "max(array(i, l))",
    "min(t collate utf8_lcase)",
    "hll_sketch_estimate(hll_sketch_agg(t))",
    "bitmap_count(bitmap_construct_agg(bitmap_bit_position(id)))",
    "sort_array(collect_set(array(o, i > 0)))",
    "array_sort(transform(collect_list(map('a', id)), m -> m['a']))",
]
"""Values are kept in the slots."""

ALL = [*KERNEL, *MERGED, *KEPT]


def with_filter(call: str) -> str:
    """Return a call whose filter stands inside the functions around it, where SQL wants it."""
    if " filter (" not in call or not call.startswith(("round(", "sort_array(")):
        return call
    whole, condition = call.split(" filter (")
    at = whole.rindex(", ") if whole.startswith("round(") else len(whole) - 1
    return f"{whole[:at]} filter ({condition}{whole[at:]}"


def generate(seed: int) -> answers.Generated:
    """Return query `seed`; forty of them have every call in every mode, with and without a window."""
    rng = random.Random(f"aggregates {seed}")
    window = [
        (),
        ("4 seconds",),
        ("6 seconds", "2 seconds"),
        ("5 seconds", "3 seconds"),
        "session",
    ][seed % 5]
    modes = ("append", "complete") if window == "session" else ("append", "update", "complete")
    mode = modes[seed // 5 % len(modes)] if window else ("update", "complete")[seed // 5 % 2]
    keys = [["o"], ["t"], ["array(o, i > 0)"], ["cast(e as timestamp_ntz)", "o"], []][seed // 3 % 5]
    if not window and not keys:
        keys = ["i"]
    start = seed * 7 % len(ALL)
    calls = [ALL[(start + n) % len(ALL)] for n in range(5)] + rng.sample(ALL, 2)
    names = [f"key{i}" for i in range(len(keys))]

    def build(source: DataFrame) -> DataFrame:
        grouping: list[Column] = [
            F.expr(k).alias(name) for k, name in zip(keys, names, strict=True)
        ]
        if window:
            source = source.withWatermark("ts", f"{answers.DELAY_S} seconds")
            cut = (
                F.session_window("ts", "1 second")
                if window == "session"
                else F.window("ts", *window)
            )
            grouping.append(cut.alias("window"))
        made = [F.expr(with_filter(call)).alias(f"v{i}") for i, call in enumerate(calls)]
        return source.groupBy(*grouping).agg(F.expr("count(*)").alias("n"), *made)

    text = f"aggregates {seed}: {mode}, window {window}, keys {keys}, {calls}"
    all_keys = [*names, "window"] if window else names
    return answers.Generated(build, mode, all_keys, "window" if window else None, text)
