"""Calls on access tokens, and the caller's identity."""

from collections.abc import AsyncIterator, Sequence

from schedclient.calls.base import ClientCalls, id_of
from schedclient.calls.specs import Length, length_message
from schedclient.errors import InvalidArgument, Violation
from schedclient.transport import methods
from schedclient.values.cluster import AccessToken, Identity, NewToken
from schedproto.v1 import auth_service_pb2 as wire


class Access(ClientCalls):
    """`client.access`."""

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
        return await self._one(NewToken, methods.CREATE_TOKEN, request, deadline)

    async def tokens(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[AccessToken]:
        """Yield tokens, newest first; also tokens that ended in the last 30 days."""
        request = wire.ListTokensRequest()
        async for entry in self._pages(AccessToken, methods.LIST_TOKENS, request, limit, deadline):
            yield entry

    async def revoke_token(
        self, token: AccessToken | str, *, deadline: float | None = None
    ) -> AccessToken:
        """Revoke a token and all tokens created with it: within five seconds, on all members.
        Revoking twice is fine.
        """
        request = wire.RevokeTokenRequest(token_id=id_of(token, AccessToken))
        return await self._one(AccessToken, methods.REVOKE_TOKEN, request, deadline)

    async def identity(self, *, deadline: float | None = None) -> Identity:
        """Return the identity that this client is authenticated as."""
        request = wire.GetIdentityRequest()
        return await self._one(Identity, methods.GET_IDENTITY, request, deadline)


def _role(word: str) -> wire.Role.ValueType:
    known = wire.Role.DESCRIPTOR.values_by_name
    found = known.get(f"ROLE_{word.upper()}")
    if found is None or not found.number:
        problem = f"{word[:60]!r} isn't a role: use viewer, operator or admin"
        raise InvalidArgument(f"role: {problem}", violations=[Violation("role", problem)])
    return wire.Role.ValueType(found.number)
