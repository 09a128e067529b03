"""Protocols for dependencies that stages and calls can't import, or that have several
implementations: `etcd/`, `rpc/` and `notify/senders/` implement them, `app/` composes them.

A method either completes or raises `schedkit.errors.Unavailable`; a refusal is a returned value.
PostgreSQL has no protocol: stages and calls use the classes of `store/`.
"""

from schedd.ports.changes import RunFeed
from schedd.ports.cluster import Checkup, Cluster, ClusterClock, Succession
from schedd.ports.coordination import Coordination, KeepLease, LeaseKeeper
from schedd.ports.lines import (
    Advances,
    Changes,
    Nudges,
    Reader,
    Refusals,
    Tails,
    Watching,
    WorkerLines,
)
from schedd.ports.notifications import Sender
from schedd.ports.objects import ResultObjects

__all__ = [
    "Advances",
    "Changes",
    "Checkup",
    "Cluster",
    "ClusterClock",
    "Coordination",
    "KeepLease",
    "LeaseKeeper",
    "Nudges",
    "Reader",
    "Refusals",
    "ResultObjects",
    "RunFeed",
    "Sender",
    "Succession",
    "Tails",
    "Watching",
    "WorkerLines",
]
