"""The tables, for statements that SQLAlchemy builds. The migrations define the schema; a test
compares the two. Tables that only SQL texts name aren't here.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()

_TYPES: Final[dict[str, Any]] = {
    "bigint": BigInteger(),
    "bool": Boolean(),
    "bytea": LargeBinary(),
    "float8": Float(),
    "int": Integer(),
    "interval": Interval(),
    "jsonb": JSONB(),
    "smallint": SmallInteger(),
    "text": Text(),
    "timestamptz": DateTime(timezone=True),
    "timestamptz[]": ARRAY(DateTime(timezone=True)),
    "uuid": Uuid(),
}


def _table(text: str) -> Table:
    """Return a table. Its text is the name, and for each column the name, the type, and `key` (a
    column of the primary key) or `null`.
    """
    table, _, columns = text.partition(":")
    return Table(table, metadata, *(_column(*each.split()) for each in columns.split(",")))


def _column(name: str, type_: str, of: str = "") -> Column[Any]:
    return Column(name, _TYPES[type_], primary_key=of == "key", nullable=of == "null")


tenures = _table("""tenures:
    id uuid key, member text, opened_at timestamptz, fenced_at timestamptz null, unplanned bool,
    grpc text, http text, version text, prefix uuid null
""")
jobs = _table("""jobs:
    job_id uuid key, namespace text, name text, shard int, generation int, spec bytea,
    ephemeral bool, created_at timestamptz, created_by text, updated_at timestamptz,
    pause_note text, paused_by text, paused_at timestamptz null, deleted_at timestamptz null,
    pool text null, retention interval null
""")
timers = _table("""timers:
    job_id uuid key, shard int, due_at timestamptz null, nominal timestamptz null, generation int,
    paused bool, fired int, line bigint null, line_generation int null
""")
resumptions = _table("resumptions: job_id uuid key, shard int, resume_at timestamptz")
pools = _table("""pools:
    namespace text key, name text key, shard int, run_limit int null, rate_count int null,
    rate_seconds float8 null, version int, paused bool, pause_note text, paused_by text,
    created_at timestamptz, updated_at timestamptz, updated_by text
""")
pool_turns = _table("""pool_turns:
    run_id uuid key, token bigint key, scheduled_at timestamptz, pool text,
    assigned_at timestamptz, start_by timestamptz, ended bool, counted_at timestamptz null
""")
runs = _table("""runs:
    scheduled_at timestamptz key, run_id uuid key, job_id uuid, due_at timestamptz,
    created_at timestamptz, shard int, priority smallint, count int,
    scheduled_until timestamptz null, fired_by uuid null, trigger text, state text,
    ready_at timestamptz, token bigint, generation int, attempt int, losses int, assignments int,
    cancelling bool, worker text null, incarnation uuid null, assigned_at timestamptz null,
    start_by timestamptz null, started_at timestamptz null, finished_at timestamptz null,
    exit_code int null, reason text null, digest bytea null, error text, payload bytea null,
    killing bool, overlap text null, excluded_by text null, backfill uuid null,
    redrive_of uuid null, late_notified bool, parent uuid null, target text null,
    children int null, root uuid null, parents jsonb null
""")
live = _table("live: shard int key, job_id uuid key, run_id uuid key, scheduled_at timestamptz")
attempts = _table("""attempts:
    run_id uuid key, token bigint key, scheduled_at timestamptz, attempt int, generation int,
    state text, reason text null, worker text, incarnation uuid, assigned_at timestamptz,
    start_by timestamptz, started_at timestamptz null, finished_at timestamptz null,
    exit_code int null, error text, digest bytea null
""")
lost_assignments = _table("""lost_assignments:
    run_id uuid key, token bigint key, scheduled_at timestamptz, job_id uuid, generation int,
    worker text, incarnation uuid, start_by timestamptz
""")
outputs = _table("""outputs:
    run_id uuid key, token bigint key, scheduled_at timestamptz, pieces bytea, stored bool
""")
results = _table("""results:
    run_id uuid key, token bigint, scheduled_at timestamptz, payload bytea, stored bool
""")
backfills = _table("""backfills:
    backfill_id uuid key, job_id uuid, first timestamptz, last timestamptz, instants timestamptz[],
    made int, open bool, overlap text null, max_parallel int, priority smallint,
    created_at timestamptz, created_by text, cancelled_at timestamptz null, cancelled_by text
""")
dead_letters = _table("""dead_letters:
    run_id uuid key, scheduled_at timestamptz, job_id uuid, fingerprint text, died_at timestamptz,
    redrive uuid null, resolution text null, resolved_at timestamptz null, resolved_by text,
    became uuid null, note text
""")
redrives = _table("""redrives:
    redrive_id uuid key, shard int, namespace text, job text, fingerprint text, rate float8,
    payload bytea null, total int, made int, open bool, fed_until timestamptz null,
    looked_at timestamptz null, created_at timestamptz, created_by text,
    stopped_at timestamptz null, stopped_by text, finished_at timestamptz null, submitted bool null
""")
idempotency_keys = _table("""idempotency_keys:
    namespace text key, call text key, key text key, digest bytea, made uuid,
    created_at timestamptz
""")
audit = _table("""audit:
    seq bigint key, at timestamptz, actor text, action text, object text, outcome text,
    reason text, run_id uuid null, token bigint, worker text, source text, before text, after text
""")
