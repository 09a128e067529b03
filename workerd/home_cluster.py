"""The cluster that a worker belongs to: remembered in its spool directory from the first welcome.

    DIRECTORY/cluster    the cluster's id, as text

What is spooled belongs to runs of that cluster. A member of another one would answer that it
doesn't know them, and the results would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from workerd.delivery.spool import write_file

log = logging.getLogger(__name__)

NAME: Final = "cluster"
MOST: Final = 100
"""Characters of an id."""

Home: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Why a member, by name and cluster id, is refused; empty: it isn't."""


async def anywhere(member: str, cluster_id: str) -> str:
    """For a worker without a spool directory: any cluster is accepted."""
    del member, cluster_id
    return ""


class HomeCluster:
    """The file and what it says."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._known = ""
        self._writing = asyncio.Lock()

    async def refusal(self, member: str, cluster_id: str) -> str:
        """Return why a member of this cluster is refused; empty: it isn't. The first cluster is
        remembered; a member that names none is of an older version.
        """
        if not cluster_id:
            return ""
        async with self._writing:
            if not self._known:
                self._known = await asyncio.to_thread(self._read_or_write, cluster_id)
        if self._known in ("", cluster_id):
            return ""
        return (
            f"member {member} is of cluster {cluster_id}, and this worker belongs to cluster"
            f" {self._known} ({self._path}). Set `endpoints` to members of that cluster; to"
            " move the worker for good, stop it and remove its spool directory when that is empty"
        )

    def _read_or_write(self, cluster_id: str) -> str:
        try:
            known = self._path.read_text("ascii", errors="replace").strip()[:MOST]
        except FileNotFoundError:
            known = ""
        if not known:
            try:
                write_file(self._path, cluster_id.encode())
            except OSError as error:  # the disk is full, say: the next welcome writes it
                log.warning("cluster id not written", extra={"path": self._path, "error": error})
                return ""
        return known or cluster_id
