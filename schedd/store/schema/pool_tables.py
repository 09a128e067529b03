"""The tables of pools."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, Table, Text, Uuid

from schedd.store.schema.tables import INSTANT, metadata

pools = Table(
    "pools",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("run_limit", Integer),
    Column("rate_count", Integer),
    Column("rate_seconds", Float),
    Column("version", Integer, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("pause_note", Text, nullable=False),
    Column("paused_by", Text, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("updated_by", Text, nullable=False),
)

pool_turns = Table(
    "pool_turns",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("scheduled_at", INSTANT, nullable=False),
    Column("pool", Text, nullable=False),
    Column("assigned_at", INSTANT, nullable=False),
    Column("start_by", INSTANT, nullable=False),
    Column("ended", Boolean, nullable=False),
    Column("counted_at", INSTANT),
)
