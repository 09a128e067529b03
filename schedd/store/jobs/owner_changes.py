"""Automatic changes of jobs by their shard's owner, under its claim: resume, pause of failing jobs.

    resumptions, failing ──read──→ computed by the owner ──→ written as by a user's call

Invariant: a change that was computed from one generation of a job isn't applied to another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId
from schedd.core.runs.model import Claim
from schedd.core.runs.records import FailedTooOften, JobRecord, Resumption
from schedd.store.jobs import job_pauses, jobs
from schedd.store.results import failure_counts


def read_due_pause_changes(
    connection: Connection, shards: Collection[ShardId], now: datetime, limit: int
) -> tuple[list[JobRecord], list[tuple[JobRecord, int]]]:
    """Return jobs whose pause has ended, and jobs that failed too often in a row with the count."""
    over = failure_counts.read_ended_pauses(connection, shards, now, limit)
    often = dict(failure_counts.too_often(connection, shards, limit))
    if not over and not often:
        return [], []
    records = {
        record.definition.job_id: record for record in jobs.records_of(connection, {*over, *often})
    }
    return (
        [records[job] for job in over if job in records],
        [(records[job], failures) for job, failures in often.items() if job in records],
    )


def resume(connection: Connection, claim: Claim, ended: Sequence[Resumption]) -> list[JobId]:
    done: list[JobId] = []
    for one in sorted(ended, key=lambda one: one.job_id):
        edit = (one.job_id, one.timer, one.skipped, one.entry, one.generation)
        answer = job_pauses.resume_job(connection, *edit, until=one.until, tenure=claim.tenure)
        done += [one.job_id] if isinstance(answer, JobRecord) else []
    return done


def pause_failing(
    connection: Connection, _: Claim, failed: Sequence[FailedTooOften]
) -> list[JobId]:
    """Pause these jobs, by id. Returns those that were paused. Their failure counts are reset."""
    done: list[JobId] = []
    for one in sorted(failed, key=lambda one: one.job_id):
        if not one.note:
            failure_counts.recount(connection, one.job_id, one.most)
            continue
        answer = job_pauses.pause_job(
            connection,
            one.job_id,
            one.note,
            one.entry.actor,
            one.entry,
            seen_generation=one.generation,
        )
        if isinstance(answer, JobRecord):
            failure_counts.recount(connection, one.job_id, 0)
            done.append(one.job_id)
    return done
