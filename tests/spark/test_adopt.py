import sys

sys.path.insert(0, "/tmp/wt")
import adopt_runner


def test_hdfs(spark):
    import carried_queries as q

    first = [("adopt", n, "hdfs") for n in q.ADOPTED if n != "processor"][:2]
    first += [("export", "windows, append", "hdfs")]
    adopt_runner.go(spark, first)
