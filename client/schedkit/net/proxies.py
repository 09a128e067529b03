"""Who asks, where a proxy stands between: the address that counts for limits and for the audit.

    X-Forwarded-For: 192.0.2.1, 203.0.113.9, 10.0.0.7     peer: 10.0.0.2
                     └ whatever was claimed └ the client  └─────┴ trusted

Invariants
- What a peer says that isn't trusted is believed by nobody: then the peer is the client.
- Each proxy adds on the right whom it saw. So the client is the last that isn't trusted; what
  stands to its left, it may have made up.
- A hop that is no address is nobody's: UNKNOWN, which is never loopback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

UNKNOWN: Final = "unknown"
"""The host of a client that a trusted proxy names by what is no address."""

_Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Proxies:
    """Those whose `X-Forwarded-For` is believed; nobody by default."""

    networks: tuple[_Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Proxies:
        """Of addresses and networks, `10.0.0.2` or `10.0.0.0/24`.

        Raises:
            ValueError: one is neither, or is everybody.
        """
        return cls(tuple(_network(text) for text in texts))

    def trusts(self, host: str) -> bool:
        """Whether what this host says of its clients is believed."""
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """The host that asks through `peer`, which sent these lines of `X-Forwarded-For`."""
        if not self.trusts(peer):
            return peer
        found = peer
        for hop in reversed([each.strip() for line in forwarded for each in line.split(",")]):
            address = _address(_without_port(hop))
            if address is None:
                return UNKNOWN
            found = str(address)
            if not self.trusts(found):
                break
        return found


NO_PROXIES: Final = Proxies()


def _network(text: str) -> _Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no address or network: {error}") from None
    if not network.prefixlen:
        raise ValueError(f"{text!r} is everybody: name the proxies")
    return network


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _without_port(hop: str) -> str:
    """Some proxies tell `203.0.113.9:4711` or `[2001:db8::9]:4711`."""
    if hop.startswith("[") and "]" in hop:
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
