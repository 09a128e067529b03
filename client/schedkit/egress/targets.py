"""The address check of outgoing calls: public addresses, and targets that `egress.allow` lists.

Invariants
- The checked address is the address that is connected to. The check is in the resolver, so a name
  that resolves differently later has no effect.
- An address in the URL doesn't pass a resolver; it is checked separately. A host that some systems
  read as an address though it isn't written as one (`127.1`, `0x7f.1`) is refused.
- Every address of a name must be permitted.
"""

import asyncio
import socket
from typing import Any, TypedDict

from schedkit.egress.policy import (
    Destinations,
    address_of,
    is_public,
    name_of,
    never,
    real,
    seems_an_address,
)


class ForbiddenTarget(OSError):
    """The target isn't permitted."""


class ResolvedAddress(TypedDict):
    """An address of a name, as the HTTP client expects it."""

    hostname: str
    host: str
    port: int
    family: int
    proto: int
    flags: int


async def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolvedAddress]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return [
        ResolvedAddress(
            hostname=host,
            host=_text_of(address),
            port=port,
            family=kind,
            proto=proto,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, proto, _, address in found
    ]


def _refuse(subject: str, why: str) -> None:
    """Raise ForbiddenTarget if there is a reason."""
    if why:
        raise ForbiddenTarget(
            f"the target {subject} is {why}: jobs and webhooks can't call it; use another target"
        )


def _text_of(address: tuple[Any, ...]) -> str:
    """Return the address, of a link-local one with its interface."""
    scope = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])


class Targets:
    """A resolver that returns permitted addresses only."""

    def __init__(self, allow: Destinations, file: str) -> None:
        """`file`: the configuration file that errors name, `workerd.toml`."""
        self._allow, self._file = allow, file
        self._look_up = _look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolvedAddress]:
        """Return the addresses of a name. Raises ForbiddenTarget: one of the addresses isn't
        permitted.
        """
        _refuse(host, never(host))
        found = await self._look_up(host, port, family)
        for each in found:
            self._check(host, each["host"], port)
        return found

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return all addresses of a host, which may be an address itself. Raises ForbiddenTarget:
        one of the addresses isn't permitted. OSError: the name can't be resolved.
        """
        self.check_literal(host, port)
        if address_of(host) is not None:
            return [host]
        found = await self.resolve(host, port, socket.AF_UNSPEC)
        return [each["host"] for each in found]

    def check_literal(self, host: str, port: int) -> None:
        """Check a host that is an address, or the name of a metadata service. Any other name is
        checked by `resolve`. Raises ForbiddenTarget: the host isn't permitted, or isn't written as
        an address should be.
        """
        if address_of(host) is not None:
            self._check(host, host, port)
        elif seems_an_address(host):
            raise ForbiddenTarget(
                f"the target {host} can't be called: its notation isn't that of a public address;"
                " use a host name, or four decimal numbers without leading zeros, such as"
                " 93.184.215.14"
            )
        else:
            _refuse(host, never(host))

    def _check(self, host: str, address: str, port: int) -> None:
        subject = host if host == address else f"{host}, which resolves to {address},"
        _refuse(subject, never(address))
        ip = address_of(address)
        assert ip is not None, "a resolver returns addresses"
        if is_public(ip) or self._allow.address(real(ip), port) or self._allow.name(host, port):
            return
        entry = name_of(host) if host != address else str(real(ip))
        raise ForbiddenTarget(
            f"the target {subject} isn't a public address, and jobs and webhooks call only"
            f" public addresses. To permit this target, write in {self._file}: [egress] allow ="
            f' ["{entry}"]'
        )
