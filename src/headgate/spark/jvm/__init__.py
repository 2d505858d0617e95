"""Makes every call into the JVM, or into PySpark's private modules, that has no public form.

Belongs here: one function for each use of Spark's private classes, named after its purpose and not after
the class. Does not belong here: the meaning of a result for a query, any state of headgate's. A new minor
version of Spark changes this room only; a test refuses private names in other rooms.

Reaching the JVM: `gateway`, `errors`, `life`, `sessions`. Plans: `plans`, `expressions`, `analysis`,
`planned`, `userfunctions`. Input, output and their logs: `tick`, `formats`, `sparksinks`, `sparklog`,
`logfiles`, `completing`, `lock`, `files`. Metrics: `gauges`. Places of tasks: `executors`, `hosts`. Data
for Python workers: `arrow`, `arrowbatches`, `frames`. Code of workers imports only `errors`, `arrow`,
`frames`, `groupstates` and `evaluation`.
"""
