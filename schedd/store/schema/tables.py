"""The tables, for statements that SQLAlchemy builds. The migrations define the schema; a test
compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
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

INSTANT = DateTime(timezone=True)

tenures = Table(
    "tenures",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("member", Text, nullable=False),
    Column("opened_at", INSTANT, nullable=False),
    Column("fenced_at", INSTANT),
    Column("unplanned", Boolean, nullable=False),
    Column("grpc", Text, nullable=False),
    Column("http", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("prefix", Uuid),
)

cluster_events = Table(
    "cluster_events",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("transaction", BigInteger, nullable=False),
    Column("at", INSTANT, nullable=False),
    Column("kind", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("ephemeral", Boolean, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("pause_note", Text, nullable=False),
    Column("paused_by", Text, nullable=False),
    Column("paused_at", INSTANT),
    Column("deleted_at", INSTANT),
    Column("pool", Text),
    Column("retention", Interval),
)

timers = Table(
    "timers",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("due_at", INSTANT),
    Column("nominal", INSTANT),
    Column("generation", Integer, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("fired", Integer, nullable=False),
    Column("line", BigInteger),
    Column("line_generation", Integer),
)

resumptions = Table(
    "resumptions",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("resume_at", INSTANT, nullable=False),
)

failing = Table(
    "failing",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("most", Integer, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("scheduled_at", INSTANT, primary_key=True),
    Column("run_id", Uuid, primary_key=True),
    Column("job_id", Uuid, nullable=False),
    Column("due_at", INSTANT, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("scheduled_until", INSTANT),
    Column("fired_by", Uuid),
    Column("trigger", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("ready_at", INSTANT, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("assignments", Integer, nullable=False),
    Column("cancelling", Boolean, nullable=False),
    Column("worker", Text),
    Column("incarnation", Uuid),
    Column("assigned_at", INSTANT),
    Column("start_by", INSTANT),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("exit_code", Integer),
    Column("reason", Text),
    Column("digest", LargeBinary),
    Column("error", Text, nullable=False),
    Column("payload", LargeBinary),
    Column("killing", Boolean, nullable=False),
    Column("overlap", Text),
    Column("excluded_by", Text),
    Column("backfill", Uuid),
    Column("redrive_of", Uuid),
    Column("late_notified", Boolean, nullable=False),
    Column("parent", Uuid),
    Column("target", Text),
    Column("children", Integer),
    Column("root", Uuid),
    Column("parents", JSONB),
)

backfills = Table(
    "backfills",
    metadata,
    Column("backfill_id", Uuid, primary_key=True),
    Column("job_id", Uuid, nullable=False),
    Column("first", INSTANT, nullable=False),
    Column("last", INSTANT, nullable=False),
    Column("instants", ARRAY(INSTANT), nullable=False),
    Column("made", Integer, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("overlap", Text),
    Column("max_parallel", Integer, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("cancelled_at", INSTANT),
    Column("cancelled_by", Text, nullable=False),
)

live = Table(
    "live",
    metadata,
    Column("shard", Integer, primary_key=True),
    Column("job_id", Uuid, primary_key=True),
    Column("run_id", Uuid, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("worker", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("assigned_at", INSTANT, nullable=False),
    Column("start_by", INSTANT, nullable=False),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("exit_code", Integer),
    Column("error", Text, nullable=False),
    Column("digest", LargeBinary),
)

lost_assignments = Table(
    "lost_assignments",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("worker", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("start_by", INSTANT, nullable=False),
)

outputs = Table(
    "outputs",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("pieces", LargeBinary, nullable=False),
    Column("stored", Boolean, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("stored", Boolean, nullable=False),
)

unwanted = Table(
    "unwanted",
    metadata,
    Column("place", Text, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("since", INSTANT, nullable=False),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("died_at", INSTANT, nullable=False),
    Column("redrive", Uuid),
    Column("resolution", Text),
    Column("resolved_at", INSTANT),
    Column("resolved_by", Text, nullable=False),
    Column("became", Uuid),
    Column("note", Text, nullable=False),
)

redrives = Table(
    "redrives",
    metadata,
    Column("redrive_id", Uuid, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("rate", Float, nullable=False),
    Column("payload", LargeBinary),
    Column("total", Integer, nullable=False),
    Column("made", Integer, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("fed_until", INSTANT),
    Column("looked_at", INSTANT),
    Column("created_at", INSTANT, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("stopped_at", INSTANT),
    Column("stopped_by", Text, nullable=False),
    Column("finished_at", INSTANT),
    Column("submitted", Boolean),
)

notices = Table(
    "notices",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("notified", Boolean, nullable=False),
    Column("failure_at", INSTANT),
    Column("dead_letter_at", INSTANT),
    Column("recovery_at", INSTANT),
    Column("late_at", INSTANT),
)

notifications = Table(
    "notifications",
    metadata,
    Column("notification_id", Uuid, primary_key=True),
    Column("way", Text, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("run_id", Uuid, nullable=False),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("held_back", Integer, nullable=False),
    Column("occurred_at", INSTANT, nullable=False),
    Column("ready_at", INSTANT, nullable=False),
    Column("next_at", INSTANT, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("tried_by", Uuid),
    Column("error", Text, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("made", Uuid, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)

incarnations = Table(
    "incarnations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("spool_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("handlers", ARRAY(Text), nullable=False),
    Column("actions", ARRAY(Text), nullable=False),
    Column("started_at", INSTANT, nullable=False),
    Column("lost_at", INSTANT),
    Column("namespaces", ARRAY(Text)),
    Column("unplanned", Boolean, nullable=False),
    Column("seen_at", INSTANT),
)

access_tokens = Table(
    "access_tokens",
    metadata,
    Column("token_id", Uuid, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("namespaces", ARRAY(Text), nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", INSTANT, nullable=False),
    Column("revoked_at", INSTANT),
    Column("revoked_by", Text, nullable=False),
    Column("parent", Uuid, ForeignKey("access_tokens.token_id", ondelete="CASCADE")),
    Column("maker", Uuid, ForeignKey("access_tokens.token_id", ondelete="CASCADE")),
)

drains = Table(
    "drains",
    metadata,
    Column("worker", Text, primary_key=True),
    Column("drained_at", INSTANT, nullable=False),
    Column("drained_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True),
    Column("at", INSTANT, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("run_id", Uuid),
    Column("token", BigInteger, nullable=False),
    Column("worker", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
)

write_probes = Table(
    "write_probes",
    metadata,
    Column("padding", LargeBinary, nullable=False),
    prefixes=["UNLOGGED"],
)
