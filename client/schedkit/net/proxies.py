"""The client's address behind proxies, for limits and for the audit log (docs/security.md).

    X-Forwarded-For: 192.0.2.1, 203.0.113.9, 10.0.0.7     peer: 10.0.0.2
                     └ whatever was claimed └ the client  └─────┴ trusted

Each proxy appends the address that it saw. So the client is the last untrusted address; addresses
to its left may be forged. A hop that isn't an address becomes UNKNOWN, which is never loopback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from schedkit.records import dataclass

UNKNOWN: Final = "unknown"
"""The host of a client if a trusted proxy doesn't name an address."""

_Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Proxies:
    """The peers whose `X-Forwarded-For` is trusted; none by default."""

    networks: tuple[_Network, ...] = ()

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Proxies:
        """Parse addresses and networks, `10.0.0.2` or `10.0.0.0/24`. Raises ValueError: an entry is
        neither, or covers all addresses.
        """
        return cls(tuple(_network(text) for text in texts))

    def trusts(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the client behind `peer`, which sent these `X-Forwarded-For` lines."""
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
        raise ValueError(
            f"{text!r} isn't a valid address or network: {error}; write for example 10.0.0.7"
            " or 10.0.0.0/8"
        ) from None
    if not network.prefixlen:
        raise ValueError(
            f"the network {text!r} contains every address, so every client would be a trusted"
            " proxy: give only the addresses of your proxies"
        )
    return network


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _without_port(hop: str) -> str:
    """Return a hop without its port: some proxies write `203.0.113.9:4711`, `[2001:db8::9]:80`."""
    if hop.startswith("[") and "]" in hop:
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
