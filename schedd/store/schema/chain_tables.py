"""The tables of chains, beside the others of `schema`."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text, Uuid

from schedd.store.schema.tables import INSTANT, metadata

chain_edges = Table(
    "chain_edges",
    metadata,
    Column("child", Uuid, primary_key=True),
    Column("parent", Uuid, primary_key=True),
)

chain_arrivals = Table(
    "chain_arrivals",
    metadata,
    Column("child", Uuid, primary_key=True),
    Column("scheduled_at", INSTANT, primary_key=True),
    Column("root", Uuid, primary_key=True),
    Column("parent", Uuid, primary_key=True),
    Column("run_id", Uuid, nullable=False),
    Column("state", Text, nullable=False),
    Column("arrived_at", INSTANT, nullable=False),
    Column("look_at", INSTANT, nullable=False),
)
