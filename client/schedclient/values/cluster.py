"""Values of cluster calls: members, shards, workers, diagnostics, audit log, access tokens."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from schedclient.values.base import Value
from schedkit.records import immutable_dataclass

MOST_COUNTED: Final = 1_000


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Value):
    """The state of the cluster."""

    cluster_id: str
    leader: str | None
    term: int
    shards: int
    owned: int
    members: int
    workers: int
    pending: int
    running: int
    retrying: int
    jobs: int
    dead_letters: int
    version: str | None
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    pause_note: str | None
    problems: list[str]
    """Why runs are late, in words; a pause isn't listed."""
    recovering: bool
    """The cluster is paused because its database was restored, to `paused_at`."""
    lost_until: datetime | None
    """Until when the lost database may have been in use."""
    lost_members: tuple[str, ...]
    lost_workers: tuple[str, ...]
    """Names of workers that were lost within the retention and haven't returned."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Member(Value):
    """A schedd process. `role`: LEADER or FOLLOWER, empty if it is LOST. `state`: LIVE, DRAINING or
    LOST.
    """

    name: str
    role: str
    state: str
    shards: int
    weight: int
    grpc: str | None
    http: str | None
    version: str | None
    tenure: str | None
    attached: bool
    database: bool
    tzdata: str | None
    lost_at: datetime | None
    """When the leader fenced the member's tenure, if it is LOST."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Value):
    """A finding of a check. `severity`: OK, WARN or BAD. `why` and `remedy` are None if it is OK.

    `subject`: the member, endpoint, worker or table.
    """

    area: str
    severity: str
    check: str
    subject: str | None
    what: str
    why: str | None
    remedy: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(Value):
    """All findings, from one member. `now`: cluster time when it answered."""

    findings: tuple[Finding, ...]
    member: str | None
    now: datetime


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTransfer(Value):
    """A planned change of leader: the members' names, terms and duration."""

    old_leader: str
    new_leader: str
    old_term: int
    new_term: int
    duration: timedelta


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class ShardMove(Value):
    """A shard that changed its owner, or would. Owners are names of members; None: no owner."""

    shard: int
    old_owner: str | None
    new_owner: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Value):
    """A hash partition of the jobs."""

    shard: int
    owner: str | None
    epoch: int
    tenure: str | None
    assigned: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Worker(Value):
    """A worker. `state`: LIVE, DRAINING (as the worker reports), LOST, or STOPPED: drained and not
    running. `refusal_reason`: why a live worker accepts no new work. `drained_at`, `drained_by`,
    `drain_reason`: the drain by an operator. `unstored_results`: results that the worker holds and
    no member has stored. `heartbeats_missing`: no member that answers receives its heartbeats; then
    `free`, `running`, `unstored_results` and `lease_age` are None.
    """

    name: str
    incarnation: str
    state: str
    slots: int
    free: int | None
    running: int | None
    labels: Mapping[str, str]
    handlers: tuple[str, ...]
    version: str | None
    host: str | None
    started_at: datetime | None
    lease_age: timedelta | None
    refusal_reason: str | None
    drained_at: datetime | None
    drained_by: str | None
    drain_reason: str | None
    executors: tuple[str, ...]
    namespaces: tuple[str, ...]
    """Namespaces whose runs the worker accepts; none: all."""
    unstored_results: int | None
    heartbeats_missing: bool
    lost_at: datetime | None
    """When the worker was recorded as lost, if it is LOST."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Value):
    """A change or rejection: actor, action, time and outcome."""

    at: datetime
    actor: str
    action: str
    object: str
    outcome: str
    reason: str | None
    run_id: str | None
    fencing_token: int
    worker: str | None
    source: str | None
    before: str | None
    after: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken(Value):
    """A token, without its secret. `role`: VIEWER, OPERATOR or ADMIN. `namespaces`: `*` for all.
    `creator_id`: the token or login that created it; this token ends with it.
    `descendants_revoked`: the number of tokens that `revoke_token` revoked with it (MOST_COUNTED:
    as many or more).
    """

    token_id: str
    name: str
    role: str
    namespaces: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    creator_id: str | None
    descendants_revoked: int


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Value):
    """A new token. `secret` is the text that a client sends; the cluster shows it only once."""

    token: AccessToken
    secret: str

    def __repr__(self) -> str:
        return f"NewToken({self.token.token_id}, its secret isn't shown)"


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Value):
    """A role in a namespace; `*`: in all."""

    namespace: str
    role: str


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Value):
    """The authenticated caller."""

    actor: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None
    token_id: str | None
