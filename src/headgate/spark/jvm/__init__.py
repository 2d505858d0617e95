"""Makes every call into the JVM, or into PySpark's private modules, that has no public form.

Belongs here: one function per thing that is asked of Spark's private classes, named for what it is
good for and not for the class. Does not belong here: what an answer means to a query, any state of
headgate's. A new minor version of Spark is a change in this room and nowhere else; a test looks for
private names outside of it.

Reaching the JVM: `gateway`, `errors`, `life`, `sessions`. Plans: `plans`, `expressions`, `analysis`,
`planned`, `userfunctions`. Input, output and their logs: `tick`, `formats`, `sparksinks`, `sparklog`,
`logfiles`, `completing`, `lock`, `files`. Metrics: `gauges`. Where tasks run: `executors`, `hosts`. To
Python workers: `arrow`, `arrowbatches`, `frames`; workers themselves import `errors`, `arrow` and
`frames` only.
"""
