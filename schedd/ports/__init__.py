"""Protocols for the dependencies of loops and calls.

Adapters implement them (`store/` over PostgreSQL, `etcd/`, `rpc/`, `notify/senders/`), `app/`
composes them, and simulations replace them. A method either completes or raises
`schedkit.errors.Unavailable`; a refusal is a returned value. Each method of the owner is one
transaction. Its first statement locks the claim's shard rows that it still owns (P1.1). Other
shards are left out and named in the answer.
"""

from schedd.ports.access_tokens import AccessTokenStore
from schedd.ports.backfills import BackfillStore
from schedd.ports.calendars import CalendarStore
from schedd.ports.chains import ChainStore
from schedd.ports.changes import ChangeStore, RunFeed
from schedd.ports.cluster import Checkup, Cluster, ClusterClock, ClusterView, MemberView, Succession
from schedd.ports.coordination import Coordination, KeepLease, LeaseKeeper
from schedd.ports.dead_letters import DeadLetterStore
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
from schedd.ports.membership import MembershipStore
from schedd.ports.notifications import NotificationStore, Sender
from schedd.ports.objects import ResultObjects
from schedd.ports.owner import OwnerStore
from schedd.ports.pools import PoolStore
from schedd.ports.recovery import RecoveryStore
from schedd.ports.retention import RetentionStore
from schedd.ports.survey import SurveyStore
from schedd.ports.users import PauseStore, UserStore
from schedd.ports.workers import ResultStore, WorkerStore

__all__ = [
    "AccessTokenStore",
    "Advances",
    "BackfillStore",
    "CalendarStore",
    "ChainStore",
    "ChangeStore",
    "Changes",
    "Checkup",
    "Cluster",
    "ClusterClock",
    "ClusterView",
    "Coordination",
    "DeadLetterStore",
    "KeepLease",
    "LeaseKeeper",
    "MemberView",
    "MembershipStore",
    "NotificationStore",
    "Nudges",
    "OwnerStore",
    "PauseStore",
    "PoolStore",
    "Reader",
    "RecoveryStore",
    "Refusals",
    "ResultObjects",
    "ResultStore",
    "RetentionStore",
    "RunFeed",
    "Sender",
    "Succession",
    "SurveyStore",
    "Tails",
    "UserStore",
    "Watching",
    "WorkerLines",
    "WorkerStore",
]
