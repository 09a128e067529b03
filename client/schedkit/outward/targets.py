"""Which addresses jobs may have called: public ones, and this host where its daemon allows it.

Invariants
- The address that was checked is the address that is connected to: the check sits in the resolver,
  so a name that answers differently a moment later gains nothing.
- An address written as such in the URL never passes a resolver; it is checked on its own. What a
  system would take for an address though it isn't written as one (`127.1`, `0x7f.1`) is refused.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

_HEXADECIMAL = re.compile("0x[0-9a-f]*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out to anybody."""
_SPECIAL = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("3fff::/20"),
)
"""Of IANA's special purposes what `is_global` of some Pythons takes for public."""


class ForbiddenTarget(OSError):
    """The address isn't one that jobs may call."""


class Targets(AbstractResolver):
    """A resolver that gives allowed addresses alone."""

    def __init__(self, *, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            ForbiddenTarget: one of them isn't allowed; a name that mixes them is up to no good.
        """
        found = await self._inner.resolve(host, port, family)
        for each in found:
            self.check(each["host"])
        return found

    async def addresses(self, host: str, port: int) -> list[str]:
        """All addresses of a host, which may be one itself.

        Raises:
            ForbiddenTarget: one of them isn't allowed.
            OSError: the name isn't known.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            found = await self.resolve(host, port, socket.AF_UNSPEC)
            return [each["host"] for each in found]
        self.check(host)
        return [host]

    def check_literal(self, host: str) -> None:
        """Check a host that is an address; a name is left to `resolve`.

        Raises:
            ForbiddenTarget: it is not allowed, or no address though it would be taken for one.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if _seems_an_address(host):
                raise ForbiddenTarget(
                    f"{host} is no public address as it is written; write an IPv4 address as four"
                    " decimal numbers without leading zeros, as in 93.184.215.14"
                ) from None
            return
        self.check(host)

    def check(self, address: str) -> None:
        """Check one address.

        Raises:
            ForbiddenTarget: it is not allowed.
        """
        ip = _real(ipaddress.ip_address(address.partition("%")[0]))
        if ip.is_loopback and self._allow_loopback:
            return
        if not _is_public(ip):
            raise ForbiddenTarget(f"{address} is no public address; jobs may not call it")

    async def close(self) -> None:
        """Nothing is open."""
        await self._inner.close()


def _seems_an_address(host: str) -> bool:
    """Whether something on the way may read it as an address: C libraries take fewer than four
    numbers, hexadecimal and octal ones, and a dot behind them. No name ends in a number.
    """
    last = host.rstrip(".").rpartition(".")[2].casefold()
    return ":" in host or last.isnumeric() or _HEXADECIMAL.fullmatch(last) is not None


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    given_out = ip.version == 4 or ip in _UNICAST
    return given_out and ip.is_global and not ip.is_multicast and not any(ip in n for n in _SPECIAL)


def _real(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address inside a mapped, 6to4 or NAT64 one."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip.ipv4_mapped or ip.sixtofour or ip
