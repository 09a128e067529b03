"""Who is told of a job's failures, recoveries, dead letters and late runs, and how often. Pure.

    a run ended, or is late ─→ follow: count, compare with threshold and silence ─→ Told
    Told ── a row of the outbox for each way ─→ Notification ─→ delivered, tried again, given up

    FAILURE       a run failed for good: from the threshold-th in a row on
    DEAD_LETTER   it became a dead letter: alike
    RECOVERY      the first that succeeded after a failure that was told
    LATE          a run hadn't started so long after it was due; once a run

Invariants
- Within a silence at most one of a kind waits: it tells of the newest, and how many were held back,
  and is delivered when the silence ends, whether or not anything more happens.
- What is asked for is the newest definition's; what happened is the row's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.lifecycle import State
from schedkit.records import dataclass, replace

LATE_AFTER: Final = timedelta(minutes=1)
"""What `on_late` calls late if it says nothing itself."""
GIVEN_UP_AFTER: Final = timedelta(hours=24)
"""From when it was ready: past that it isn't tried again."""
FIRST_WAIT: Final = timedelta(seconds=5)
LONGEST_WAIT: Final = timedelta(minutes=15)
_DOUBLINGS: Final = 10


class NotificationKind(StrEnum):
    """What is told of; the words that receivers see."""

    FAILURE = "run.failed"
    RECOVERY = "run.recovered"
    DEAD_LETTER = "run.dead_lettered"
    LATE = "run.late"


class NotificationChannel(StrEnum):
    """How somebody is told."""

    WEBHOOK = "WEBHOOK"
    COMMAND = "COMMAND"
    EMAIL = "EMAIL"


@dataclass(frozen=True, slots=True)
class Notice:
    """Whom a job wants told of one kind, and how often."""

    webhook: str = ""
    command: tuple[str, ...] = ()
    email: tuple[str, ...] = ()
    threshold: int = 1
    silence: timedelta = timedelta(0)
    after: timedelta = LATE_AFTER

    @property
    def ways(self) -> tuple[NotificationChannel, ...]:
        """Those that it names."""
        said = (
            (NotificationChannel.WEBHOOK, self.webhook),
            (NotificationChannel.COMMAND, self.command),
            (NotificationChannel.EMAIL, self.email),
        )
        return tuple(way for way, given in said if given)


@dataclass(frozen=True, slots=True)
class Notices:
    """All that a job wants told."""

    failure: Notice | None = None
    recovery: Notice | None = None
    dead_letter: Notice | None = None
    late: Notice | None = None

    def of(self, kind: NotificationKind) -> Notice | None:
        """Whom it wants told of this; None: nobody."""
        match kind:
            case NotificationKind.FAILURE:
                return self.failure
            case NotificationKind.RECOVERY:
                return self.recovery
            case NotificationKind.DEAD_LETTER:
                return self.dead_letter
            case NotificationKind.LATE:
                return self.late

    def is_late(self, due_at: datetime, now: datetime) -> bool:
        """Whether a run that was due then and starts, or waits, now is late."""
        return self.late is not None and now - due_at > self.late.after


@dataclass(frozen=True, slots=True)
class Happened:
    """A run that ended, or is late, of a job that wants something told."""

    scheduled_at: datetime
    run_id: RunId
    job_id: JobId
    shard: ShardId
    notices: Notices
    state: State | None = None
    """How it ended; None: it hasn't, it is late alone."""
    dead: bool = False
    """It became a dead letter."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of a job between two tidings."""

    failures: int = 0
    """In a row."""
    told: bool = False
    """One of them was told, or waits for a silence's end to be."""
    latest: Mapping[NotificationKind, datetime] = field(default_factory=dict)
    """Of each kind, when the last one was told, or is to be."""


@dataclass(frozen=True, slots=True)
class DueNotification:
    """One thing that is to be told."""

    of: Happened
    kind: NotificationKind
    ready_at: datetime
    held_back: int = 0
    """How many a silence held back, this one among them."""
    failures: int = 0
    """In a row, with this one."""
    joins: bool = False
    """Another waits already for the same end of silence: it takes that one's place."""


def follow(
    memory: Memory, happened: Iterable[Happened], now: datetime
) -> tuple[Memory, list[DueNotification]]:
    """What follows from what happened to the runs of one job, in that order."""
    told: list[DueNotification] = []
    for one in happened:
        kinds: list[NotificationKind] = []
        if one.state is None:
            kinds = [NotificationKind.LATE]
        elif one.state is State.FAILED:
            memory = replace(memory, failures=memory.failures + 1)
            kinds = [
                NotificationKind.FAILURE,
                *([NotificationKind.DEAD_LETTER] if one.dead else []),
            ]
        elif one.state is State.SUCCEEDED:
            kinds = [NotificationKind.RECOVERY] if memory.told else []
            memory = replace(memory, failures=0, told=False)
        for kind in kinds:
            memory = _tell(memory, one, kind, now, told)
    return memory, told


def _tell(
    memory: Memory,
    one: Happened,
    kind: NotificationKind,
    now: datetime,
    told: list[DueNotification],
) -> Memory:
    """Add to `told` what is to be told of this, if anything is."""
    notice = one.notices.of(kind)
    trouble = kind in (NotificationKind.FAILURE, NotificationKind.DEAD_LETTER)
    if notice is None or (trouble and memory.failures < notice.threshold):
        return memory
    last = memory.latest.get(kind)
    new = DueNotification(one, kind, now, failures=memory.failures)
    if last is not None and notice.silence and now < last + notice.silence:
        joins = last > now  # what waits does so for a silence that may have been longer then
        ready_at = min(last, now + notice.silence) if joins else last + notice.silence
        new = replace(new, ready_at=ready_at, held_back=1, joins=joins)
    for place, other in enumerate(told):
        if new.joins and other.kind is kind and other.ready_at == new.ready_at:
            told[place] = replace(new, held_back=other.held_back + 1, joins=other.joins)
            break
    else:
        told.append(new)
    latest = {**memory.latest, kind: new.ready_at}
    return replace(memory, latest=latest, told=memory.told or trouble)


@dataclass(frozen=True, slots=True)
class Redirected:
    """What an edit of whom to tell makes of what waits. Of kinds that nobody is told of any more
    nothing is said: who delivers drops them.
    """

    left: tuple[tuple[NotificationKind, NotificationChannel], ...] = ()
    """Ways that aren't gone any more."""
    joined: tuple[tuple[NotificationKind, NotificationChannel], ...] = ()
    """Ways that what waited for those goes by instead."""
    silences: tuple[tuple[NotificationKind, timedelta], ...] = ()
    """That are shorter, by how much: what waits for their ends waits so much less."""

    def __bool__(self) -> bool:
        return bool(self.left or self.silences)


NOT_REDIRECTED: Final = Redirected()


def redirected(old: Notices | None, new: Notices | None) -> Redirected:
    """What follows from an edit."""
    left: list[tuple[NotificationKind, NotificationChannel]] = []
    joined: list[tuple[NotificationKind, NotificationChannel]] = []
    silences: list[tuple[NotificationKind, timedelta]] = []
    for kind in NotificationKind:
        before, now = ((one or Notices()).of(kind) for one in (old, new))
        if before is None or now is None:
            continue
        left += [(kind, way) for way in before.ways if way not in now.ways]
        joined += [(kind, way) for way in now.ways if way not in before.ways]
        if now.silence < before.silence:
            silences.append((kind, before.silence - now.silence))
    return Redirected(tuple(left), tuple(joined), tuple(silences))


@dataclass(frozen=True, slots=True)
class PendingNotification:
    """A row of the outbox that may be delivered now."""

    notification_id: UUID
    way: NotificationChannel
    job_id: JobId
    shard: ShardId
    kind: NotificationKind
    generation: int = 0
    """Of the definition that says whom to tell: it is tried if that is the newest; 0: whatever."""
    instead: tuple[NotificationChannel, ...] = ()
    """Ways by which it goes, for that definition doesn't name its own: who wrote it knew an older
    one.
    """


@dataclass(frozen=True, slots=True)
class Overdue:
    """Some of this shard waited for a day, and nobody had time for them: more come to a receiver
    than it takes.
    """

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Notification:
    """A row of the outbox that is being delivered, with what it tells as it stands now."""

    notification_id: UUID
    """The same at each try: a receiver knows repeats by it."""
    way: NotificationChannel
    job_id: JobId
    shard: ShardId
    kind: NotificationKind
    namespace: str
    job: str
    run_id: RunId
    scheduled_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    state: str
    reason: str
    error: str
    exit_code: int | None
    attempt: int
    instants: int
    """That the run stands for: of some that were missed one row tells."""
    worker: str
    failures: int
    held_back: int
    occurred_at: datetime
    ready_at: datetime
    tries: int
    """This one among them."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What became of one try."""

    notification: Notification
    error: str = ""
    """Why it wasn't delivered; empty: it was."""
    wait: timedelta | None = None
    """Until it is tried again; None: it isn't."""

    @property
    def shard(self) -> ShardId:
        """Whose owner delivers it."""
        return self.notification.shard


def settled(one: Notification, error: str, now: datetime) -> DeliveryOutcome:
    """What becomes of it after a try that gave this error, or none."""
    over = now - one.ready_at >= GIVEN_UP_AFTER
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(one.tries - 1, _DOUBLINGS))
    return DeliveryOutcome(one, error, wait if error and not over else None)


def target(notice: Notice, way: NotificationChannel) -> str:
    """Whose slowness it shares: a webhook's origin, a program, the mail server."""
    match way:
        case NotificationChannel.WEBHOOK:
            url = urlsplit(notice.webhook)
            return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        case NotificationChannel.COMMAND:
            return notice.command[0]
        case NotificationChannel.EMAIL:
            return "mail"


@dataclass(frozen=True, slots=True)
class Means:
    """What a member may tell people by, as its configuration says."""

    commands: Sequence[str] = ()
    """Programs, by their absolute paths."""
    mail: bool = False


NO_MEANS: Final = Means()
