"""The identity of this worker in the cluster."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from schedkit.records import dataclass, replace
from workerd.core.ids import Incarnation
from workerd.delivery.spool import write_file


def fresh_incarnation() -> Incarnation:
    return Incarnation(str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The contents of every hello. A new incarnation changes only the incarnation."""

    worker: str
    spool_id: str
    version: str
    host: str
    slots: int
    labels: Mapping[str, str]
    handlers: Sequence[str]
    actions: Sequence[str]
    started_at: datetime
    incarnation: Incarnation = field(default_factory=fresh_incarnation)

    def renewed(self) -> WorkerIdentity:
        """Return the same worker with a new incarnation."""
        return replace(self, incarnation=fresh_incarnation())


# The cluster that a worker belongs to: remembered in its spool directory from the first welcome.
#
#     DIRECTORY/cluster    the cluster's id, as text
#
# Spooled results belong to runs of that cluster. A member of another cluster would answer that the
# runs are unknown, and the results would be lost.

log = logging.getLogger(__name__)

NAME: Final = "cluster"
MOST: Final = 100
"""Characters of an id."""

Home: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Returns why a member, by name and cluster id, is refused; empty if it isn't."""


async def anywhere(member: str, cluster_id: str) -> str:
    """Accept any cluster, for a worker without a spool directory."""
    del member, cluster_id
    return ""


class HomeCluster:
    """The file that names the cluster."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._known = ""
        self._writing = asyncio.Lock()

    async def refusal(self, member: str, cluster_id: str) -> str:
        """Return why a member of this cluster is refused; empty if it isn't. The first cluster is
        remembered. Members of older versions name no cluster.
        """
        if not cluster_id:
            return ""
        async with self._writing:
            if not self._known:
                self._known = await asyncio.to_thread(self._read_or_write, cluster_id)
        if self._known in ("", cluster_id):
            return ""
        return (
            f"member {member} belongs to cluster {cluster_id}, but this worker belongs to cluster"
            f" {self._known}, by the file {self._path}. Set `endpoints` to members of the worker's"
            " cluster. To move the worker to the other cluster, stop it, and remove its spool"
            " directory when the spool contains no results"
        )

    def _read_or_write(self, cluster_id: str) -> str:
        try:
            known = self._path.read_text("ascii", errors="replace").strip()[:MOST]
        except FileNotFoundError:
            known = ""
        if not known:
            try:
                write_file(self._path, cluster_id.encode())
            except OSError as error:  # such as a full disk: the next welcome writes it
                log.warning(
                    "cluster id not written to the spool, the next connection retries",
                    extra={"path": self._path, "error": error},
                )
                return ""
        return known or cluster_id
