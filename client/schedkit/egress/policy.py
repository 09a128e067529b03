"""The `[egress]` settings of a daemon: targets that it may call, and the outgoing proxy.

    allow = ["10.0.0.0/8", "app", "*.svc.cluster.local", "db.internal:8080", "[fd00::7]:8080"]

docs/egress.md has the rules.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from schedkit.config.loader import ConfigProblem, secret
from schedkit.records import dataclass

log = logging.getLogger(__name__)

IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_HEXADECIMAL: Final = re.compile("0x[0-9a-f]*")
_PORT: Final = re.compile("[0-9]{1,5}", re.ASCII)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""The part of IPv6 that is assigned for public use."""
_SPECIAL: Final = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("3fff::/20"),
)
"""IANA's special-purpose networks that `is_global` of some Python versions reports as public."""
_NEVER: Final[Sequence[tuple[Network, str]]] = (
    (ipaddress.ip_network("169.254.0.0/16"), "a link-local address, where metadata services are"),
    (ipaddress.ip_network("fe80::/10"), "a link-local address"),
    (ipaddress.ip_network("100.100.100.200/32"), "a metadata service (Alibaba Cloud)"),
    (ipaddress.ip_network("168.63.129.16/32"), "a metadata service (Azure)"),
    (ipaddress.ip_network("192.0.0.192/32"), "a metadata service (Oracle Cloud)"),
    (ipaddress.ip_network("fd00:ec2::/32"), "a metadata service (AWS)"),
    (ipaddress.ip_network("fd20:ce::254/128"), "a metadata service (Google Cloud)"),
    (ipaddress.ip_network("fd00:42::42/128"), "a metadata service (Scaleway)"),
    (ipaddress.ip_network("0.0.0.0/8"), "an unspecified address"),
    (ipaddress.ip_network("::/128"), "an unspecified address"),
    (ipaddress.ip_network("224.0.0.0/4"), "a multicast address"),
    (ipaddress.ip_network("ff00::/8"), "a multicast address"),
    (ipaddress.ip_network("255.255.255.255/32"), "the broadcast address"),
)
_VARIABLES: Final = tuple(
    name for each in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY") for name in (each, each.lower())
)
_METADATA_NAMES: Final = frozenset(
    {
        *("metadata.google.internal", "metadata.goog", "metadata.azure.internal"),
        *("instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com"),
    }
)


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """An entry of a list: a network, or a host name with or without its subdomains."""

    network: Network | None
    host: str
    """Host in lower case. With a leading dot: all names that end in it."""
    port: int | None


@dataclass(frozen=True, slots=True)
class Destinations:
    """A list of networks and hosts."""

    entries: tuple[AllowEntry, ...] = ()

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Destinations:
        """Read a list. Raises ValueError: an entry is neither a network nor a host, or can't be
        permitted.
        """
        return cls(tuple(map(_entry, texts)))

    def name(self, host: str, port: int) -> bool:
        """Return whether the list has this host by name."""
        name = name_of(host)
        return any(
            name.endswith(entry.host) if entry.host.startswith(".") else name == entry.host
            for entry in self.entries
            if entry.host and entry.port in (None, port)
        )

    def address(self, address: IP, port: int) -> bool:
        """Return whether the list has a network with this address."""
        return any(
            entry.network is not None and entry.port in (None, port) and address in entry.network
            for entry in self.entries
        )


@dataclass(frozen=True, slots=True)
class Proxy:
    """An outgoing HTTP proxy, and the targets that don't go through it."""

    url: str = field(repr=False)
    host: str
    port: int
    credentials: str = field(repr=False)
    """`user:password`, decoded; empty: none."""
    passed_by: Destinations

    @property
    def address(self) -> str:
        """`host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def takes(self, host: str, port: int | None) -> bool:
        """Return whether a call to this target uses the proxy. Loopback never does."""
        if (address := address_of(host)) is not None:
            ip = real(address)
            return not (ip.is_loopback or self.passed_by.address(ip, port or 0))
        return name_of(host) != "localhost" and not self.passed_by.name(host, port or 0)


@dataclass(frozen=True, slots=True)
class Egress:
    """Services that jobs and webhooks may call, and the proxy to them."""

    allow: tuple[str, ...] = ()
    """Networks and hosts that may be called beside public addresses."""
    proxy: str = secret("")
    """`http://[user:password@]host:port`; empty: calls are direct."""
    no_proxy: tuple[str, ...] = ()
    """Networks and hosts that are called directly."""

    def faults(self) -> Iterator[ConfigProblem]:
        keys = [("allow", text) for text in self.allow]
        keys += [("no_proxy", text) for text in self.no_proxy]
        for key, text in keys:
            try:
                _entry(text)
            except ValueError as error:
                yield ConfigProblem(key, str(error))
        try:
            _proxy(self.proxy, Destinations())
        except ValueError as error:
            yield ConfigProblem("proxy", str(error))

    def allowed(self) -> Destinations:
        return Destinations.from_texts(self.allow)

    def via(self) -> Proxy | None:
        return _proxy(self.proxy, Destinations.from_texts(self.no_proxy))


def warn_of_ignored_proxies(egress: Egress) -> None:
    """Log the proxy variables of the environment that have no effect."""
    if ignored := ignored_proxies(egress, os.environ):
        log.warning(
            "proxy variables ignored variables=%s: to use a proxy, set egress.proxy",
            ",".join(ignored),
        )


def ignored_proxies(egress: Egress, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the proxy variables that are set without effect, because `egress.proxy` isn't set."""
    return [] if egress.proxy else [name for name in _VARIABLES if environ.get(name)]


def never(host: str) -> str:
    """Return why no setting can permit this address or name; empty if one can."""
    address = address_of(host)
    if address is None:
        return "the name of a metadata service" if name_of(host) in _METADATA_NAMES else ""
    for form in _forms(address):
        for network, why in _NEVER:
            if form in network:
                return why
    return ""


def is_public(address: IP) -> bool:
    """Return whether this address is reached over the Internet."""
    ip = real(address)
    assigned = ip.version == 4 or ip in _UNICAST
    return assigned and ip.is_global and not ip.is_multicast and not any(ip in n for n in _SPECIAL)


def address_of(host: str) -> IP | None:
    """Return the address that this host is written as; None: the host is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def name_of(host: str) -> str:
    """Return a host name in its form for comparison: lower case, in ASCII, without a final dot."""
    name = host.rstrip(".").lower()
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def real(ip: IP) -> IP:
    """Return the IPv4 address inside a mapped, 6to4 or NAT64 address; others unchanged."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip.ipv4_mapped or ip.sixtofour or ip


def seems_an_address(host: str) -> bool:
    """Return whether a C library may read this host as an address. C libraries accept fewer than
    four numbers, hexadecimal and octal numbers, and a final dot. No valid name ends in a number.
    """
    last = host.rstrip(".").rpartition(".")[2].casefold()
    return ":" in host or last.isnumeric() or _HEXADECIMAL.fullmatch(last) is not None


def _forms(ip: IP) -> Iterator[IP]:
    """Yield the address, and each IPv4 address that a gateway or kernel may extract from it."""
    yield ip
    if isinstance(ip, ipaddress.IPv4Address):
        return
    yield real(ip)
    if ip.teredo is not None:
        yield from ip.teredo
    last = ipaddress.IPv4Address(ip.packed[-4:])
    if ip in _LOCAL_NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        yield last
    if int.from_bytes(ip.packed[8:12]) in _ISATAP:
        yield last


def _proxy(url: str, passed_by: Destinations) -> Proxy | None:
    """Parse the proxy's URL. Raises ValueError, without the URL: it may contain a password."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "http" or parts.path.strip("/") or parts.query:
        raise ValueError("the value must be the URL of a proxy: http://[user:password@]host:port")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    credentials = f"{user}:{password}" if user or password else ""
    return Proxy(url, host, port, credentials, passed_by)


def _entry(text: str) -> AllowEntry:
    host, port = _split(text.strip())
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        return AllowEntry(None, _host(text, host), port)
    if "/" in host and ipaddress.ip_address(host.partition("/")[0]) != network.network_address:
        raise ValueError(
            f"the network {text!r} isn't valid, because it has host bits: write {str(network)!r}"
        )
    if isinstance(network, ipaddress.IPv6Network) and (
        mapped := network.network_address.ipv4_mapped
    ):
        raise ValueError(
            f"the host or network {text!r} is an IPv4 address in the form of IPv6: write"
            f" {str(mapped)!r}"
        )
    for refused, why in _NEVER:
        if network.version == refused.version and network.subnet_of(refused):  # type: ignore[arg-type]
            raise ValueError(
                f"the host or network {text!r} can't be allowed: it is {why}; remove this entry"
            )
    return AllowEntry(network, "", port)


def _split(text: str) -> tuple[str, int | None]:
    """Return the host or network of an entry, and its port if it has one."""
    if "://" in text:
        raise ValueError(
            f'the host or network {text!r} is a URL: write only the host, as in "app" or "app:8080"'
        )
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or (rest and colon != ":"):
            raise ValueError(
                f"the host or network {text!r} isn't a valid IPv6 host: write the address in"
                ' brackets, such as "[fd00::7]:8080"'
            )
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    else:
        return text, None
    if not colon:
        return host, None
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        raise ValueError(
            f"the host or network {text!r} has no valid port: write a number from 1 to 65535"
        )
    return host, int(port)


def _host(text: str, host: str) -> str:
    if host == "*":
        raise ValueError(
            '"*" isn\'t a valid entry: to allow every address, write "0.0.0.0/0" and "::/0"'
        )
    name = name_of(host.removeprefix("*"))
    labels = name.removeprefix(".").split(".")
    starred = host.startswith("*") and not host.startswith("*.")
    shaped = all(map(_LABEL.fullmatch, labels)) and len(name) <= 253
    if starred or seems_an_address(name) or not shaped:
        raise ValueError(
            f"the host or network {text!r} isn't valid: write a network (10.0.0.0/8), an address, a"
            " host (app) or a suffix (*.example.internal)"
        )
    if name in _METADATA_NAMES:
        raise ValueError(
            f"the host or network {text!r} can't be allowed: it is the name of a metadata"
            " service; remove this entry"
        )
    return name
