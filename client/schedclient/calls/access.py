"""Calls on access tokens, and the caller's identity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from google.protobuf.message import Message

from schedclient.calls import paging
from schedclient.calls.specs import Length, length_message
from schedclient.errors import InvalidArgument, Violation
from schedclient.transport import methods
from schedclient.transport.transport import Transport
from schedclient.values.access import AccessToken, Identity, NewToken
from schedclient.values.reading import value_of
from schedproto.v1 import auth_service_pb2 as wire


class Access:
    """`client.access`."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    async def create_token(
        self,
        name: str,
        role: str,
        *,
        namespaces: Sequence[str] = (),
        lifetime: Length | None = None,
        deadline: float | None = None,
    ) -> NewToken:
        """Create a token: `viewer`, `operator` or `admin` in these namespaces (default: all).
        `lifetime` is from a minute to 366 days (default: 30 days).
        """
        request = wire.CreateTokenRequest(
            name=name,
            role=_role(role),
            namespaces=namespaces,
            lifetime=length_message(lifetime, "lifetime"),
        )
        return value_of(NewToken, await self._call(methods.CREATE_TOKEN, request, deadline))

    async def tokens(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[AccessToken]:
        """Yield tokens, newest first; also tokens that ended in the last 30 days."""

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListTokensRequest(page_size=size, page_token=token)
            page = await self._call(methods.LIST_TOKENS, request, deadline)
            return page.tokens, page.next_page_token

        async for entry in paging.paged(AccessToken, read, limit):
            yield entry

    async def revoke_token(
        self, token: AccessToken | str, *, deadline: float | None = None
    ) -> AccessToken:
        """Revoke a token and all tokens created with it: within five seconds, on all members.
        Revoking twice is fine.
        """
        token_id = token if isinstance(token, str) else token.token_id
        request = wire.RevokeTokenRequest(token_id=token_id)
        return value_of(AccessToken, await self._call(methods.REVOKE_TOKEN, request, deadline))

    async def identity(self, *, deadline: float | None = None) -> Identity:
        """Return the identity that this client is authenticated as."""
        request = wire.GetIdentityRequest()
        return value_of(Identity, await self._call(methods.GET_IDENTITY, request, deadline))


def _role(word: str) -> wire.Role.ValueType:
    known = wire.Role.DESCRIPTOR.values_by_name
    found = known.get(f"ROLE_{word.upper()}")
    if found is None or not found.number:
        problem = f"{word[:60]!r} isn't a role: use viewer, operator or admin"
        raise InvalidArgument(f"role: {problem}", violations=[Violation("role", problem)])
    return wire.Role.ValueType(found.number)
