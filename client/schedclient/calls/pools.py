"""Calls on pools: jobs that share a concurrency limit, a rate limit, or both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from google.protobuf.message import Message

from schedclient.calls import paging
from schedclient.calls.naming import pool_of
from schedclient.calls.specs import Form
from schedclient.errors import from_form
from schedclient.transport import methods
from schedclient.transport.transport import Transport
from schedclient.values.pools import Pool
from schedclient.values.reading import value_of
from schedkit.protojson import FormErrors, from_json
from schedproto.v1 import pool_service_pb2 as wire


class Pools:
    """`client.pools`. Every call raises `ApiError`; `deadline` is in seconds, and `pool`
    a name or a `Pool`.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._call = transport.call
        self._namespace = namespace

    def in_namespace(self, namespace: str) -> Pools:
        """Return the same calls for pools of another namespace."""
        return Pools(self._transport, namespace)

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
        request = wire.SetPoolRequest(
            pool=_message(form, self._namespace), validate_only=validate_only
        )
        return value_of(Pool, await self._call(methods.SET_POOL, request, deadline))

    async def get(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """Return a pool, with its runs in progress and its waiting runs."""
        namespace, name = pool_of(pool, self._namespace)
        request = wire.GetPoolRequest(namespace=namespace, pool=name)
        return value_of(Pool, await self._call(methods.GET_POOL, request, deadline))

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Pool]:
        """Yield pools, by name; `deadline` holds for each page."""

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListPoolsRequest(
                namespace=self._namespace, page_size=size, page_token=token
            )
            page = await self._call(methods.LIST_POOLS, request, deadline)
            return page.pools, page.next_page_token

        async for pool in paging.paged(Pool, read, limit):
            yield pool

    async def delete(self, pool: Pool | str, *, deadline: float | None = None) -> None:
        """Delete a pool. While jobs use it: `FailedPrecondition` with their names."""
        namespace, name = pool_of(pool, self._namespace)
        request = wire.DeletePoolRequest(namespace=namespace, pool=name)
        await self._call(methods.DELETE_POOL, request, deadline)

    async def pause(
        self, pool: Pool | str, note: str = "", *, deadline: float | None = None
    ) -> Pool:
        """Pause a pool: its runs wait until `resume`, triggered ones too. When this returns, runs
        that were dispatched before can't start any more either.
        """
        namespace, name = pool_of(pool, self._namespace)
        request = wire.PausePoolRequest(namespace=namespace, pool=name, note=note)
        return value_of(Pool, await self._call(methods.PAUSE_POOL, request, deadline))

    async def resume(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """Resume a pool: its runs start again, in the order of their wait."""
        namespace, name = pool_of(pool, self._namespace)
        request = wire.ResumePoolRequest(namespace=namespace, pool=name)
        return value_of(Pool, await self._call(methods.RESUME_POOL, request, deadline))


def _message(form: Form, namespace: str) -> wire.Pool:
    try:
        pool = from_json(form, wire.Pool)
    except FormErrors as error:
        raise from_form(error) from None
    pool.namespace = namespace
    return pool
