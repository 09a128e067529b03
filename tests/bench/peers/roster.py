"""Contestants in the order of a round: schedd first, then the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from bench.peers.apscheduler import APScheduler
from bench.peers.bullmq import BullMQ, BullMQAlways
from bench.peers.celery import Celery, CeleryResults, CeleryResultsAlways
from bench.peers.graphile import (
    Graphile,
    GraphileBatched,
    GraphileBatchedFour,
    GraphileBatchedTwo,
)
from bench.peers.ourselves import Schedd
from bench.peers.peer import Drained, Peer
from bench.peers.pgqueuer import PgQueuer, PgQueuerBatched, PgQueuerBatchedTwo
from bench.peers.procrastinate import Procrastinate


class Contestant(Protocol):
    """Common interface of schedd and its peers."""

    @property
    def name(self) -> str: ...
    @property
    def share(self) -> float: ...
    @property
    def processes(self) -> int: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...

    def drain(self, jobs: int, cache: Path, deadline: float) -> Drained:
        """Drain so many jobs once; return the figures."""


OURSELVES: Final = Schedd()
PEERS: Final[Sequence[Peer]] = (
    GraphileBatched(),
    GraphileBatchedTwo(),
    GraphileBatchedFour(),
    Graphile(),
    PgQueuerBatched(),
    PgQueuerBatchedTwo(),
    PgQueuer(),
    BullMQ(),
    BullMQAlways(),
    Celery(),
    CeleryResults(),
    CeleryResultsAlways(),
    Procrastinate(),
    APScheduler(),
)
