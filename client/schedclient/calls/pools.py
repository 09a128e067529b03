"""Calls on pools: jobs that share a concurrency limit, a rate limit, or both."""

from __future__ import annotations

from collections.abc import AsyncIterator

from schedclient.calls.base import NamespacedCalls, place_of
from schedclient.calls.specs import read_form
from schedclient.values.jobs import Pool
from schedproto.v1 import pool_service_pb2 as wire


class Pools(NamespacedCalls):
    """`client.pools`. Every call raises `ApiError`; `deadline` is in seconds, and `pool`
    a name or a `Pool`.
    """

    async def set(
        self,
        /,
        name: str,
        *,
        limit: int | None = None,
        rate: str | None = None,
        version: int = 0,
        validate_only: bool = False,
        deadline: float | None = None,
    ) -> Pool:
        """Create a pool, or replace its limits: at most `limit` runs in progress at once, and at
        most `rate` starts (`"100/m"`); None: unlimited.

        With `version` the call fails if the pool has changed.
        """
        form = {"name": name, "limit": limit, "rate": rate, "version": version}
        pool = read_form(form, wire.Pool)
        pool.namespace = self._namespace
        request = wire.SetPoolRequest(pool=pool, validate_only=validate_only)
        return await self._one(Pool, request, deadline)

    async def get(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """Return a pool, with its runs in progress and its waiting runs."""
        namespace, name = place_of(pool, Pool, self._namespace)
        return await self._one(Pool, wire.GetPoolRequest(namespace=namespace, pool=name), deadline)

    def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Pool]:
        """Yield pools, by name; `deadline` holds for each page."""
        return self._pages(Pool, wire.ListPoolsRequest(namespace=self._namespace), limit, deadline)

    async def delete(self, pool: Pool | str, *, deadline: float | None = None) -> None:
        """Delete a pool. While jobs use it: `FailedPrecondition` with their names."""
        namespace, name = place_of(pool, Pool, self._namespace)
        await self._call(wire.DeletePoolRequest(namespace=namespace, pool=name), deadline)

    async def pause(
        self, pool: Pool | str, note: str = "", *, deadline: float | None = None
    ) -> Pool:
        """Pause a pool: its runs wait until `resume`, triggered ones too. When this returns, runs
        that were dispatched before can't start any more either.
        """
        namespace, name = place_of(pool, Pool, self._namespace)
        request = wire.PausePoolRequest(namespace=namespace, pool=name, note=note)
        return await self._one(Pool, request, deadline)

    async def resume(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """Resume a pool: its runs start again, in the order of their wait."""
        namespace, name = place_of(pool, Pool, self._namespace)
        request = wire.ResumePoolRequest(namespace=namespace, pool=name)
        return await self._one(Pool, request, deadline)
