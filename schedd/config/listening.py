"""Where a member listens, and under which address others reach it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from schedkit.config import ConfigProblem
from schedkit.net.channel import against_each, split_address
from schedkit.net.proxies import Proxies

_ALL: Final = {"0.0.0.0", "::"}  # noqa: S104 - nothing is bound here
"""Hosts that stand for all addresses."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where it listens: host:port each."""

    grpc: str = "127.0.0.1:7420"
    http: str = "127.0.0.1:7421"
    advertise_grpc: str = ""
    """host:port under which other hosts reach it; as `grpc` if empty."""
    advertise_http: str = ""
    grpc_tokens: str = ""
    """host:port for those who send a token and have no certificate, with TLS; empty: nowhere."""
    insecure: bool = False
    """Serve others than loopback in the clear."""
    host_names: tuple[str, ...] = ()
    """Names by which HTTP is asked in the clear, beside those of `advertise_http`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of HTTP proxies whose `X-Forwarded-For` is believed."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        for why in against_each(self.trusted_proxies, _untrusted):
            yield ConfigProblem("trusted_proxies", why)
        for why in against_each(self.host_names, _unnamed):
            yield ConfigProblem("host_names", why)
        for key in ("advertise_grpc", "advertise_http"):
            if getattr(self, key):
                yield from _unreached(key, getattr(self, key))
        yield from self._shared()

    def bound(self) -> dict[str, str]:
        """The addresses that are listened at, by key."""
        tokens = {"grpc_tokens": self.grpc_tokens} if self.grpc_tokens else {}
        return {"grpc": self.grpc, "http": self.http, **tokens}

    def _shared(self) -> Iterator[ConfigProblem]:
        """Two that would have one port of one host."""
        seen: list[tuple[str, str, int]] = []
        for key, address in self.bound().items():
            if [*_unread(key, address)]:
                continue
            host, port = split_address(address)
            for other, its_host, its_port in seen:
                if port and port == its_port and (host == its_host or {host, its_host} & _ALL):
                    yield ConfigProblem(key, f"{address} is the port of listen.{other}, too")
            seen.append((key, host, port))

    def proxies(self) -> Proxies:
        """Those that are trusted."""
        return Proxies.of(self.trusted_proxies)


def everywhere(address: str) -> str:
    """The host that is no place, but all addresses of one; empty: it isn't such."""
    try:
        host, _ = split_address(address)
        return host if ip_address(host).is_unspecified else ""
    except ValueError:
        return ""


def _untrusted(proxy: str) -> str:
    try:
        Proxies.of([proxy])
    except ValueError as error:
        return str(error)
    return ""


def _unnamed(host: str) -> str:
    return "" if _HOST_NAME.fullmatch(host) else f"{host!r} is no name of a host"


def _unread(key: str, address: str) -> Iterator[ConfigProblem]:
    try:
        split_address(address)
    except ValueError as error:
        yield ConfigProblem(key, str(error))


def _unreached(key: str, address: str) -> Iterator[ConfigProblem]:
    """Why nobody gets to this member there."""
    if unread := [*_unread(key, address)]:
        yield from unread
        return
    _, port = split_address(address)
    if not port or (place := everywhere(address)):
        yield ConfigProblem(key, f"nobody reaches {'port 0' if not port else place}")
