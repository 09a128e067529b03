"""Packages and versions of the peers: raise one here, and its environment is made again.

The first package of each is the peer itself; the others are named where their version tells in the
rate (the driver) or where the peer leaves the choice to its user.
"""

from __future__ import annotations

from typing import Final

from bench.peers.environments import Environment, Tool

GRAPHILE: Final = Environment(
    "graphile-worker", Tool.NODE, {"graphile-worker": "0.18.0", "pg": "8.23.1"}
)
BULLMQ: Final = Environment("bullmq", Tool.NODE, {"bullmq": "6.7.0", "ioredis": "5.11.1"})
PGQUEUER: Final = Environment(
    "pgqueuer",
    Tool.PYTHON,
    # `pgq run` of 1.6.0 fails on typer 0.29, which it would otherwise be given
    {"pgqueuer": "1.6.0", "asyncpg": "0.32.0", "uvloop": "0.23.0", "typer": "0.24.0"},
)
CELERY: Final = Environment("celery", Tool.PYTHON, {"celery[redis]": "5.7.0", "redis": "8.1.0"})
PROCRASTINATE: Final = Environment(
    "procrastinate", Tool.PYTHON, {"procrastinate": "3.10.0", "psycopg[binary]": "3.3.9"}
)
APSCHEDULER: Final = Environment(
    "apscheduler",
    Tool.PYTHON,
    {"apscheduler": "3.11.3", "sqlalchemy": "2.1.9", "psycopg2-binary": "2.9.13"},
)
