"""schedd in the same race: a cluster of its own, one member, one worker of 1,000 slots.

The runs are submitted while the worker is drained (it is there, and takes nothing); it is
undrained, and the race begins. Each run is dispatched under a token of its own, and its result
stored.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.drain import submit_held, undrain
from bench.peers.errors import Failed
from bench.peers.peer import Drained
from bench.peers.starts import judge
from bench.peers.stores import said_by_postgres
from bench.peers.watching import watch
from schedclient import ApiError
from support.cluster import DevCluster, dev_cluster
from support.repository import ROOT

SLOTS: Final = 1_000
_SIZES: Final = {"members": 1, "workers": 1, "slots": SLOTS}
_HANDLERS: Final = 'workerd.handlers=["bench.peers.handler"]'


class Schedd:
    """As `make bench NAME=drain` has it."""

    name = "schedd"
    share = 5.0
    processes = 1
    settings = _SIZES

    def drain(self, jobs: int, _cache: Path, deadline: float) -> Drained:
        """Drain once, from an empty cluster to its end.

        Raises:
            Failed: it didn't come up, or its runs couldn't be submitted in time.
        """
        try:
            return self._drained(jobs, deadline)
        except (ApiError, AssertionError) as error:  # DevCluster asserts what it waits for
            raise Failed(f"schedd: {error}") from error

    def _drained(self, jobs: int, deadline: float) -> Drained:
        with tempfile.TemporaryDirectory(prefix="schedd-peer-schedd-") as folder:
            starts = Path(folder) / "starts"
            variables = {"PYTHONPATH": str(ROOT / "tests"), "PEERS_STARTS": str(starts)}
            with dev_cluster(
                members=1,
                workers=1,
                slots=SLOTS,
                overrides=[_HANDLERS],
                env=variables,
                on_disk=True,
            ) as cluster:
                began = time.monotonic()
                asyncio.run(_submit(cluster, jobs, deadline))
                enqueueing = time.monotonic() - began
                asyncio.run(undrain(cluster))
                watched = watch(starts, jobs, lambda: _completed(cluster), lambda: True, deadline)
                reported = said_by_postgres(cluster.sql)
            content = starts.read_bytes() if starts.exists() else b""
        versions = {"schedd": version("schedd")}
        return Drained(jobs, judge(content, jobs), watched, enqueueing, versions, reported)


def _completed(cluster: DevCluster) -> int:
    """How many runs have succeeded, by their rows: the member's metrics may be a second old."""
    [(count,)] = cluster.sql("SELECT count(*) FROM runs WHERE state = 'SUCCEEDED'")
    return int(count)


async def _submit(cluster: DevCluster, jobs: int, deadline: float) -> None:
    work = ({"python": {"handler": "noop"}, "payload": number} for number in range(jobs))
    try:
        async with asyncio.timeout(deadline):
            await submit_held(cluster, work)
    except TimeoutError as error:
        raise Failed(f"{jobs} runs were not submitted within {deadline:g} s") from error
