"""Notifications of a job's failures, recoveries, dead letters and late runs. Pure.

    a run ended or is late ─→ follow: count, compare with threshold and silence ─→ DueNotification
    DueNotification ── a row of the outbox per channel ─→ Notification ─→ delivered, tried again,
                                                                         given up

    FAILURE       a run failed for good: from the threshold-th in a row on
    DEAD_LETTER   a run became a dead letter: by the same threshold
    RECOVERY      the first run that succeeded after a failure with a notification
    LATE          a run hadn't started within the given time after it was due; once per run

Invariants
- Within a silence at most one notification of a kind waits. It describes the newest event, counts
  the suppressed ones, and is delivered when the silence ends.
- Receivers come from the newest definition; the event comes from the row.
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
    """The kind of event, by the name that receivers see."""

    FAILURE = "run.failed"
    RECOVERY = "run.recovered"
    DEAD_LETTER = "run.dead_lettered"
    LATE = "run.late"


class NotificationChannel(StrEnum):
    """How a notification is delivered."""

    WEBHOOK = "WEBHOOK"
    COMMAND = "COMMAND"
    EMAIL = "EMAIL"


@dataclass(frozen=True, slots=True)
class Notice:
    """A job's receivers of one kind of notification, and how often they get one."""

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
    """All notifications of a job."""

    failure: Notice | None = None
    recovery: Notice | None = None
    dead_letter: Notice | None = None
    late: Notice | None = None

    def of(self, kind: NotificationKind) -> Notice | None:
        """Return the receivers of this kind; None: none."""
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
    """A run that ended or is late, of a job with notifications."""

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
    notified: bool = False
    """A notification of one of them was sent, or waits for the end of a silence."""
    latest: Mapping[NotificationKind, datetime] = field(default_factory=dict)
    """Of each kind, when the last notification was or will be sent."""


@dataclass(frozen=True, slots=True)
class DueNotification:
    """A notification to send."""

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
    """Return the notifications for these events of one job's runs, in order, and the new memory."""
    due: list[DueNotification] = []
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
            kinds = [NotificationKind.RECOVERY] if memory.notified else []
            memory = replace(memory, failures=0, notified=False)
        for kind in kinds:
            memory = _notify(memory, one, kind, now, due)
    return memory, due


def _notify(
    memory: Memory,
    one: Happened,
    kind: NotificationKind,
    now: datetime,
    due: list[DueNotification],
) -> Memory:
    """Add the notification of this event to `due`, if there is one."""
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
    for place, other in enumerate(due):
        if new.joins and other.kind is kind and other.ready_at == new.ready_at:
            due[place] = replace(new, held_back=other.held_back + 1, joins=other.joins)
            break
    else:
        due.append(new)
    latest = {**memory.latest, kind: new.ready_at}
    return replace(memory, latest=latest, notified=memory.notified or trouble)


@dataclass(frozen=True, slots=True)
class Redirected:
    """The effect of an edit of receivers on waiting notifications. Kinds without receivers aren't
    listed: the delivery drops them.
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
    """Notifications of this shard that waited for a day without a try: their receiver takes fewer
    than are sent.
    """

    shard: ShardId


@dataclass(frozen=True, slots=True)
class OutboxNotification:
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

    notification: OutboxNotification
    error: str = ""
    """Why it wasn't delivered; empty: it was."""
    wait: timedelta | None = None
    """Until it is tried again; None: it isn't."""

    @property
    def shard(self) -> ShardId:
        """Whose owner delivers it."""
        return self.notification.shard


def outcome_of(one: OutboxNotification, error: str, now: datetime) -> DeliveryOutcome:
    """Return the outcome of a try with this error; empty: it was delivered."""
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
