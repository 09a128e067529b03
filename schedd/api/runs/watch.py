"""Watch given runs until they end, all runs of a job or namespace without end, or one object.

run_ids ──▶ polled, and read at once when this member receives a change
namespace, job ──▶ change stream ──▶ each change, with the cursor to continue from on any member
"""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from zlib import crc32

from schedd.api import dead_letters, views
from schedd.api.cluster import cluster
from schedd.api.errors import cut, wrong
from schedd.api.jobs import backfills, stored_jobs
from schedd.api.runs.logs import BEGINNING, bad_cursor
from schedd.api.runs.runs import run_id_of, unknown
from schedd.api.services import Caller, Services
from schedd.core.auth.rights import EVERY, Role
from schedd.core.cluster.cluster_events import ClusterEventRecord
from schedd.core.ids import RunId
from schedd.core.runs.change_stream import Change, ChangeGap, ChangeMessage, Cursor, Scope
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.run_records import RunRecord
from schedkit.backoff import Backoff
from schedproto.v1 import cluster_service_pb2, job_service_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as wire

MOST_WATCHED: Final = 1000
_RUNS: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,256})")


class EndedRuns:
    """The watched runs whose end was sent: those of the cursor `after`, and more later. The cursor
    `9f3c01aa-5` says that of these runs, in order, the first and the third have ended.
    """

    def __init__(self, watched: Sequence[RunId], after: str) -> None:
        """Raise InvalidArgumentError if `after` is a cursor of other runs."""
        self._places = {run_id: place for place, run_id in enumerate(watched)}
        self._digest = f"{crc32(b''.join(watched)):08x}"
        self._bits = 0
        if after not in ("", BEGINNING):
            self._bits = self._read(after)

    def _read(self, after: str) -> int:
        found = _RUNS.fullmatch(after)
        if found is None or found[1] != self._digest:
            raise bad_cursor(
                f"the cursor {cut(after)!r} isn't a valid position in the changes of these runs"
            )
        return int(found[2], 16)

    def end(self, run_id: RunId) -> None:
        self._bits |= 1 << self._places[run_id]

    @property
    def remaining_runs(self) -> list[RunId]:
        """The runs whose end wasn't sent yet."""
        return [run_id for run_id, place in self._places.items() if not self._bits >> place & 1]

    def __str__(self) -> str:
        return f"{self._digest}-{self._bits:x}"


async def watch_runs(
    services: Services, caller: Caller, request: wire.WatchRunsRequest
) -> AsyncGenerator[wire.RunEvent, None]:
    """Return each change of the requested runs, from their current state or from a cursor on."""
    if not request.run_ids:
        sees_cluster = caller.who.may(Role.VIEWER, EVERY)
        async with aclosing(_all(services, request, sees_cluster=sees_cluster)) as events:
            async for event in events:
                yield event
        return
    for field in ("namespace", "job"):
        if getattr(request, field):
            raise wrong(field, f"{field} can't be combined with run ids: leave one of the two out")
    if len(request.run_ids) > MOST_WATCHED:
        raise wrong(
            "run_ids",
            f"the list has {len(request.run_ids)} ids: give at most {MOST_WATCHED} in one call",
        )
    named = {run_id_of(text, "run_ids"): text for text in request.run_ids}
    found = {one.run.key.run_id for one in await services.store.get_runs([*named])}
    for run_id, text in named.items():
        if run_id not in found:
            raise unknown(text)
    watched = sorted(found)
    async for event in _these(services, EndedRuns(watched, request.resume_after)):
        yield event


async def _all(
    services: Services, request: wire.WatchRunsRequest, *, sees_cluster: bool
) -> AsyncGenerator[wire.RunEvent, None]:
    """Watch the runs of a namespace or job, and events of the cluster if the caller may view it."""
    try:
        after = Cursor.read(request.resume_after) if request.resume_after else None
    except ValueError as unread:
        raise bad_cursor(str(unread)) from None
    namespace, job = stored_jobs.namespace_of(request.namespace), None
    if request.job:
        job = (await stored_jobs.find(services, namespace, request.job)).definition.job_id
    async with aclosing(services.feed.follow(Scope(namespace, job), after)) as feed:
        async for news in feed:
            if isinstance(news.what, ClusterEventRecord) and not sees_cluster:
                continue
            yield _event(services, news)


def _event(services: Services, news: ChangeMessage) -> wire.RunEvent:
    cursor = "" if news.cursor is None else str(news.cursor)
    if isinstance(news.what, Change):
        progress = services.advances.progress_of(news.what.record.run)
        return services.run_messages.of(news.what, progress, cursor)
    event = wire.RunEvent(cursor=cursor)
    if isinstance(news.what, ChangeGap):
        event.gap.why = news.what.why
        if news.what.before is not None:
            event.gap.scheduled_before.FromDatetime(news.what.before)
    elif isinstance(news.what, ClusterEventRecord):
        event.cluster.CopyFrom(views.cluster_event(news.what))
    return event


async def _these(services: Services, ends: EndedRuns) -> AsyncGenerator[wire.RunEvent, None]:
    """Watch the runs whose end wasn't sent, until all have ended."""
    seen: dict[RunId, RunRecord] = {}
    sent: dict[RunId, run_pb2.RunProgress] = {}
    look = Backoff(initial=0.02, maximum=0.5, factor=1.3)
    with services.changes.watching(left := ends.remaining_runs) as changes:
        while left:
            for record in await services.store.get_runs(left):
                run_id = record.run.key.run_id
                before, progress = seen.get(run_id), services.advances.progress_of(record.run)
                further = progress is not None and progress != sent.get(run_id)
                same = before is record or before == record  # thousands may be watched
                if same and not further:
                    continue
                seen[run_id] = record
                if progress is not None:
                    sent[run_id] = progress
                run = views.run_message(record, progress)
                changed = before is None or views.run_message(before, progress) != run
                if changed:
                    look.reset()
                if record.run.state not in LIVE:
                    ends.end(run_id)
                if changed or further:
                    yield wire.RunEvent(run=run, cursor=str(ends))
            if left := ends.remaining_runs:
                await changes.wait(look.next())


# Watch one object: a worker, a redrive or a backfill.


def watch_worker(
    services: Services, _caller: Caller, request: cluster_service_pb2.WatchWorkerRequest
) -> AsyncGenerator[cluster_service_pb2.Worker, None]:
    """Watch a running or drained worker without end. All streams share one snapshot."""
    return services.snapshots.changes(
        ("workers", ""),
        lambda: cluster.workers_by_name(services),
        lambda workers: cluster.picked(workers, request.worker),
        _without_lease_age,
        lambda _: False,
        rests=False,
    )


def watch_redrive(
    services: Services, caller: Caller, request: wire.WatchRedriveRequest
) -> AsyncGenerator[run_pb2.Redrive, None]:
    """Watch a redrive until it is stopped, or all its runs have ended."""
    asked = wire.GetRedriveRequest(redrive_id=request.redrive_id)

    def over(one: run_pb2.Redrive) -> bool:
        if one.state == run_pb2.Redrive.STATE_DONE:
            return not any(one.runs.get(state.value) for state in LIVE)
        return one.state == run_pb2.Redrive.STATE_STOPPED

    return services.snapshots.changes(
        ("redrive", request.redrive_id),
        lambda: dead_letters.get_redrive(services, caller, asked),
        lambda redrive: redrive,
        lambda redrive: redrive,
        over,
    )


def watch_backfill(
    services: Services, caller: Caller, request: job_service_pb2.WatchBackfillRequest
) -> AsyncGenerator[job_service_pb2.Backfill, None]:
    """Watch a backfill until all its runs have ended."""
    asked = job_service_pb2.GetBackfillRequest(backfill_id=request.backfill_id)

    def over(one: job_service_pb2.Backfill) -> bool:
        there = one.waiting + one.running + one.retrying
        return one.state != job_service_pb2.Backfill.STATE_ACTIVE and not there

    return services.snapshots.changes(
        ("backfill", request.backfill_id),
        lambda: backfills.get_backfill(services, caller, asked),
        lambda backfill: backfill,
        lambda backfill: backfill,
        over,
    )


def _without_lease_age(worker: cluster_service_pb2.Worker) -> cluster_service_pb2.Worker:
    """The lease age isn't a change."""
    facts = cluster_service_pb2.Worker()
    facts.CopyFrom(worker)
    facts.ClearField("lease_age")
    return facts
