"""A copy thread without hosts, threads or files."""

from __future__ import annotations

from headgate.spark.move.copy_thread import Delivery, Lags, Urgency


class FakeCopyThread:
    """Does what is wanted when a test says so."""

    def __init__(self):
        self.works = {}
        self.lags = Lags()
        self.open = set()
        self.dropped = []
        self.reached = True
        self.asked = []

    def want(self, place, urgency):
        work = self.works.setdefault(place, Delivery(urgency))
        work.urgency = urgency
        return work

    def result_of(self, place):
        return self.works.get(place)

    def forget(self, place):
        self.works.pop(place, None)

    def busy(self, operator, group):
        return group in self.open

    def knows(self, hosts):
        self.asked.append(list(hosts))
        return self.reached

    def arenas(self, hosts):
        return tuple(f"arena of {host}" for host in hosts)

    def committed(self, heads):
        self.heads = heads

    def stop(self):
        pass

    def work(self, state, step, count=99):
        """Bring up to `count` groups to the state after `step`, or drop them."""
        done = 0
        for (_, group, host), work in list(self.works.items()):
            if work.urgency is Urgency.DROP:
                work.dropped = True
                self.dropped.append((host, group))
            elif work.known_step is None and done < count:
                work.known_step, work.token = step, state.tokens[group]
                work.moved_bytes += 10
                done += 1
