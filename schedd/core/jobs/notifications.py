"""Notifications of a job's failures, recoveries, dead letters and late runs
(docs/semantics/notifications.md). Pure.

    a run ended or is late ─→ follow: count, compare with threshold and interval ─→ DueNotification
    DueNotification ─→ a row of the outbox per channel ─→ delivered, retried or abandoned

Within `min_interval` at most one notification of a kind waits. It describes the newest event,
counts the suppressed events, and is delivered when the interval ends. Receivers come from the
newest definition, the event from the outbox row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.lifecycle import State
from schedkit.records import dataclass, replace

LATE_AFTER: Final = timedelta(minutes=1)
"""The default of `on_late.after`: the time after which a run is late."""
ABANDONED_AFTER: Final = timedelta(hours=24)
"""How long a notification is tried, counted from `ready_at`."""
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
    min_interval: timedelta = timedelta(0)
    after: timedelta = LATE_AFTER

    @property
    def ways(self) -> tuple[NotificationChannel, ...]:
        return tuple(way for way in NotificationChannel if getattr(self, way.name.lower()))


@dataclass(frozen=True, slots=True)
class Notices:
    failure: Notice | None = None
    recovery: Notice | None = None
    dead_letter: Notice | None = None
    late: Notice | None = None

    def notice_of_kind(self, kind: NotificationKind) -> Notice | None:
        """Return the settings of a kind; None: no notification."""
        notice: Notice | None = getattr(self, kind.name.lower())
        return notice

    def is_late(self, due_at: datetime, now: datetime) -> bool:
        """Return whether a run is late that starts, or still waits, at `now`."""
        return self.late is not None and now - due_at > self.late.after


@dataclass(frozen=True, slots=True)
class NotifiableEvent:
    scheduled_at: datetime
    run_id: RunId
    job_id: JobId
    shard: ShardId
    notices: Notices
    state: State | None = None
    """The run's terminal state. None: the run hasn't ended, it is late."""
    dead: bool = False


@dataclass(frozen=True, slots=True)
class NotificationHistory:
    """The stored state of a job's notifications, between events."""

    failures: int = 0
    notified: bool = False
    """Whether a notification of these failures was sent, or waits for the end of an interval."""
    latest: Mapping[NotificationKind, datetime] = field(default_factory=dict)
    """When the last notification of each kind was or will be sent."""


@dataclass(frozen=True, slots=True)
class DueNotification:
    of: NotifiableEvent
    kind: NotificationKind
    ready_at: datetime
    held_back: int = 0
    """The number of events that `min_interval` suppressed, including this one."""
    failures: int = 0
    """Consecutive failures, including this one."""
    joins: bool = False
    """Whether it replaces a notification that already waits for the end of the same interval."""


def follow(
    memory: NotificationHistory, happened: Iterable[NotifiableEvent], now: datetime
) -> tuple[NotificationHistory, list[DueNotification]]:
    """Return the new memory, and the notifications for these events of one job, in order."""
    due: list[DueNotification] = []
    for one in happened:
        kinds: list[NotificationKind] = []
        if one.state is None:
            kinds = [NotificationKind.LATE]
        elif one.state is State.FAILED:
            memory = replace(memory, failures=memory.failures + 1)
            kinds = [NotificationKind.FAILURE]
            if one.dead:
                kinds.append(NotificationKind.DEAD_LETTER)
        elif one.state is State.SUCCEEDED:
            kinds = [NotificationKind.RECOVERY] if memory.notified else []
            memory = replace(memory, failures=0, notified=False)
        for kind in kinds:
            memory = _notify(memory, one, kind, now, due)
    return memory, due


def _notify(
    memory: NotificationHistory,
    one: NotifiableEvent,
    kind: NotificationKind,
    now: datetime,
    due: list[DueNotification],
) -> NotificationHistory:
    """Add the notification of this event to `due`, if there is one."""
    notice = one.notices.notice_of_kind(kind)
    trouble = kind in (NotificationKind.FAILURE, NotificationKind.DEAD_LETTER)
    if notice is None or (trouble and memory.failures < notice.threshold):
        return memory
    last = memory.latest.get(kind)
    new = DueNotification(one, kind, now, failures=memory.failures)
    if last is not None and notice.min_interval and now < last + notice.min_interval:
        joins = last > now  # an edit may have shortened the interval since
        ready_at = min(last, now + notice.min_interval) if joins else last + notice.min_interval
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
class ReroutedNotifications:
    """The effect of an edit of receivers on waiting notifications. Kinds that lost all receivers
    aren't listed: the delivery drops their notifications.
    """

    left: tuple[tuple[NotificationKind, NotificationChannel], ...] = ()
    """Channels that the edit removed."""
    joined: tuple[tuple[NotificationKind, NotificationChannel], ...] = ()
    """Channels that the edit added. Notifications of removed channels move to them."""
    shortened_intervals: tuple[tuple[NotificationKind, timedelta], ...] = ()
    """Kinds whose `min_interval` the edit shortened, and by how much."""

    def __bool__(self) -> bool:
        return bool(self.left or self.shortened_intervals)


NOT_REDIRECTED: Final = ReroutedNotifications()


def redirected(old: Notices | None, new: Notices | None) -> ReroutedNotifications:
    """Return the effect of an edit on waiting notifications."""
    left, joined, shortened_intervals = [], [], []
    for kind in NotificationKind:
        before, now = ((one or Notices()).notice_of_kind(kind) for one in (old, new))
        if before is None or now is None:
            continue
        left += [(kind, way) for way in before.ways if way not in now.ways]
        joined += [(kind, way) for way in now.ways if way not in before.ways]
        if now.min_interval < before.min_interval:
            shortened_intervals.append((kind, before.min_interval - now.min_interval))
    return ReroutedNotifications(tuple(left), tuple(joined), tuple(shortened_intervals))


@dataclass(frozen=True, slots=True)
class PendingNotification:
    """A row of the outbox that may be delivered now."""

    notification_id: Id
    way: NotificationChannel
    job_id: JobId
    shard: ShardId
    kind: NotificationKind
    generation: int = 0
    """The definition that names the receivers. It is tried only if this is the newest; 0: always.
    """
    instead: tuple[NotificationChannel, ...] = ()
    """The channels to use, if the definition is newer than the row and doesn't name `way`."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A shard with notifications that waited for `ABANDONED_AFTER` without a try."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class OutboxNotification:
    """A row of the outbox that is being delivered, with the current data of its run."""

    notification_id: Id
    """The same id at each try, so that receivers can drop repeats."""
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
    """The number of scheduled times of the run's row: consecutive missed ones are merged."""
    worker: str
    failures: int
    held_back: int
    occurred_at: datetime
    ready_at: datetime
    tries: int
    """This one included."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    notification: OutboxNotification
    error: str = ""
    """Why the try failed; empty: the notification was delivered."""
    wait: timedelta | None = None
    """The wait before the next try; None: no further try."""

    @property
    def shard(self) -> ShardId:
        return self.notification.shard


def outcome_of(one: OutboxNotification, error: str, now: datetime) -> DeliveryOutcome:
    """Return the outcome of a try with this error; empty: the notification was delivered."""
    over = now - one.ready_at >= ABANDONED_AFTER
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(one.tries - 1, _DOUBLINGS))
    return DeliveryOutcome(one, error, wait if error and not over else None)


def target(notice: Notice, way: NotificationChannel) -> str:
    """Return the receiver, for `receiver_limits`: a webhook's origin, a program or "mail"."""
    match way:
        case NotificationChannel.WEBHOOK:
            url = urlsplit(notice.webhook)
            return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        case NotificationChannel.COMMAND:
            return notice.command[0]
        case NotificationChannel.EMAIL:
            return "mail"


@dataclass(frozen=True, slots=True)
class DeliveryMeans:
    """The channels that a member's configuration allows besides webhooks."""

    commands: Sequence[str] = ()
    """Absolute paths of the allowed programs."""
    mail: bool = False


NO_MEANS: Final = DeliveryMeans()
