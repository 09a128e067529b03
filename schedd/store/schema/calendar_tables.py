"""The tables of calendars, beside the others of `schema`."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, Table, Text, Uuid

from schedd.store.schema.tables import INSTANT, metadata

calendars = Table(
    "calendars",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("deleted_at", INSTANT),
)

calendar_versions = Table(
    "calendar_versions",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("spec", LargeBinary, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("updated_by", Text, nullable=False),
)

job_calendars = Table(
    "job_calendars",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("version", Integer, nullable=False),
)
