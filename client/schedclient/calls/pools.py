"""Calls on pools: jobs that share how many runs are under way at once, or how many start."""

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
        """The same calls, for pools of another namespace."""
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
        """Make it, or change it: at most `limit` runs under way at once, however many if None; at
        most so many starts in a time as `rate` says (`"100/m"`), however often if None.

        Both are as given afterwards. With a `version`, a pool that somebody has changed since it
        had that one stays as it is.
        """
        form = {"name": name, "limit": limit, "rate": rate, "version": version}
        request = wire.SetPoolRequest(
            pool=_message(form, self._namespace), validate_only=validate_only
        )
        return value_of(Pool, await self._call(methods.SET_POOL, request, deadline))

    async def get(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """One pool, with how many of its runs are under way, and how many wait."""
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
        """Delete it; `FailedPrecondition`, with their names, while jobs use it."""
        namespace, name = pool_of(pool, self._namespace)
        request = wire.DeletePoolRequest(namespace=namespace, pool=name)
        await self._call(methods.DELETE_POOL, request, deadline)

    async def pause(
        self, pool: Pool | str, note: str = "", *, deadline: float | None = None
    ) -> Pool:
        """Start nothing of it until `resume`, what is triggered neither; its runs wait. When it
        returns, nothing that was handed out before starts any more.
        """
        namespace, name = pool_of(pool, self._namespace)
        request = wire.PausePoolRequest(namespace=namespace, pool=name, note=note)
        return value_of(Pool, await self._call(methods.PAUSE_POOL, request, deadline))

    async def resume(self, pool: Pool | str, *, deadline: float | None = None) -> Pool:
        """Let a paused pool's runs start again, those that have waited first."""
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
