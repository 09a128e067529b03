"""What the loops and calls need of the world, as small protocols.

Adapters give them (`store/` over PostgreSQL, `etcd/`, `rpc/`, `senders/` to the world), `app/` ties
them together, twins stand in for them in simulation. Each method is one round of work that either
happened, or raised `schedkit.errors.Unavailable`; a refusal is a returned value. Methods of the
owner are one transaction each, whose first statement locks the rows of the claim's shards where
they are still its own (PROTOCOL 1); shards that aren't are left out and named in the answer.
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
