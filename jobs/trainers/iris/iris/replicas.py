"""The replicas of a job, and how they add up what each has computed.

Vertex AI tells every replica in `CLUSTER_SPEC` the addresses of all, by worker pool, and which one it is.
The primary listens on its own address, and the others connect to that.
"""

import json
import os
import time
from multiprocessing.connection import Client, Listener

PATIENCE = 120


class Replicas:
    """This replica among the others; `rank` counts from the primary's 0."""

    def __init__(self):
        spec = json.loads(os.environ["CLUSTER_SPEC"])
        pools = sorted(spec["cluster"].items())
        everybody = [(pool, index) for pool, members in pools for index in range(len(members))]
        self.count = len(everybody)
        self.rank = everybody.index((spec["task"]["type"], spec["task"]["index"]))
        host, _, port = spec["cluster"]["workerpool0"][0].rpartition(":")
        secret = os.environ["CLOUD_ML_JOB_ID"].encode()
        if self.rank:
            self.others = [connect((host, int(port)), secret)]
        else:
            with Listener((host, int(port)), backlog=self.count, authkey=secret) as listener:
                self.others = [listener.accept() for _ in range(self.count - 1)]

    def summed(self, array):
        """The sum of all replicas' arrays; every replica gets it, and has to ask for it."""
        if self.rank:
            (primary,) = self.others
            primary.send(array)
            return primary.recv()
        total = sum((other.recv() for other in self.others), start=array)
        for other in self.others:
            other.send(total)
        return total


def connect(address, secret):
    """A connection to the primary, which may start later than this replica."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return Client(address, authkey=secret)
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
