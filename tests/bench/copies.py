"""Jobs by the million: one of each kind is made by the API, and copied into the tables.

What a member reads of a copy is what it would read of a job that was made as usual. The copies are
made in statements of a million, each seen by the members when it is committed; what is due soon
goes last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import TextIOBase
from typing import Final
from uuid import UUID

from bench.rig import NOOP
from schedclient import Client
from schedctl.dev import postgres
from schedd.core.ids import JobId
from schedd.core.partition import shard_of
from support.cluster import DevCluster

TEMPLATE: Final = "template-"
"""What the names of jobs begin with that are copied; a number follows."""
AT_ONCE: Final = 1_000_000
"""Copies in one statement."""
HOT: Final = range(60)
"""Templates of jobs with one run a minute, each at a second of its own."""
IDLE: Final = range(60, 61)
"""The template of jobs whose next instant is months away."""
FAR: Final = "0 0 1 1 *"

COPIED: Final = "CREATE UNLOGGED TABLE copied (job_id uuid, shard int, template int, number int)"
JOBS: Final = """
INSERT INTO jobs SELECT (jsonb_populate_record(t, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard, 'name', t.name || '-' || c.number))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
"""
TIMERS: Final = """
INSERT INTO timers SELECT (jsonb_populate_record(m, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
JOIN timers m ON m.job_id = t.job_id
"""


async def make_templates(cluster: DevCluster) -> None:
    """Those of HOT and IDLE: from now on the hot ones run, each once a minute."""
    async with Client(cluster.endpoints) as client:
        for second in HOT:
            await client.jobs.create(f"{TEMPLATE}{second}", cron=f"{second} * * * * *", python=NOOP)
        for number in IDLE:
            await client.jobs.create(f"{TEMPLATE}{number}", cron=FAR, python=NOOP)


def copy(cluster: DevCluster, *kinds: tuple[int, range]) -> None:
    """So many copies of each kind, in this order, of the templates in turn that its range names."""
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
        cursor.execute(COPIED)
        for count, templates in kinds:
            for start in range(0, count, AT_ONCE):
                rows = _Rows(_lines(start, min(count, start + AT_ONCE), templates))
                cursor.execute("TRUNCATE copied")
                cursor.copy_expert("COPY copied FROM STDIN", rows)
                cursor.execute(JOBS)
                cursor.execute(TIMERS)
                session.commit()
        cursor.execute("DROP TABLE copied")
        session.commit()
        session.autocommit = True
        cursor.execute("VACUUM (FREEZE, ANALYZE) jobs, timers")  # else it would come meanwhile


def _lines(start: int, stop: int, templates: range) -> Iterator[str]:
    for number in range(start, stop):
        job = JobId(UUID(bytes=os.urandom(16), version=4))
        kind = templates[number % len(templates)]
        yield f"{job}\t{shard_of(job)}\t{kind}\t{number}\n"


class _Rows(TextIOBase):
    """Lines as a file that COPY reads."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self, size: int | None = -1, /) -> str:
        """About so much; empty at the end."""
        parts: list[str] = []
        length = 0
        for line in self._lines:
            parts.append(line)
            length += len(line)
            if size is not None and 0 <= size <= length:
                break
        return "".join(parts)
