"""gRPC connections and listeners of schedd: limited, kept alive, with mutual TLS.

Invariants
- Without TLS no data leaves the host unless the operator has set `insecure = true`. Every reader of
  a configuration calls `check_plaintext`.
- With TLS both sides show a certificate of the cluster's own authority. The minimum is TLS 1.2, by
  gRPC's core (checked by a test).
- A lost peer is detected within 15 s on an idle stream. Connecting is retried at least every 2 s,
  forever.
- No message is larger than 4 MiB. Proxies of the environment aren't used between members.
- The server ends a connection whose handshake takes more than 10 s, or that has no call for 5 min.
"""

import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import grpc
import grpc.aio

from schedkit.clock import boottime
from schedkit.errors import Misconfigured
from schedkit.net.certificates import unfit
from schedkit.records import dataclass

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 4 * 1024 * 1024
"""Maximum bytes of a message, in both directions."""

LOOK_EVERY: Final = 5.0
"""Seconds between two checks of the TLS files."""

MAX_STREAMS: Final = 256
"""Concurrent calls on one connection. Further calls of a client wait until one has ended."""

_BOTH: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # also the TCP user timeout
    ("grpc.keepalive_permit_without_calls", 1),
    # The timeout of any ping: otherwise a minute, regardless of keepalive's own timeout.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
CLIENT_OPTIONS: Final = (
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),  # the default is 120 s, longer than a failover
    ("grpc.min_reconnect_backoff_ms", 3_000),  # actually the timeout of one connection attempt
    ("grpc.enable_http_proxy", 0),
)
"""For `grpc.aio` channels; `connect` sets them."""

SERVER_OPTIONS: Final = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # Otherwise calls count until they are destroyed, which their caller can't observe. A client at
    # its limit would have streams refused whenever a loop is behind with its work.
    ("grpc.http.overload_protection", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # default: two minutes, for silent clients
    ("grpc.max_connection_idle_ms", 300_000),  # without a call; clients reconnect automatically
    ("grpc.so_reuseport", 0),  # two daemons on one port must fail
)
"""For `grpc.aio.server(options=SERVER_OPTIONS)`."""


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files: the cluster's authority, and this process's certificate with its key. A client
    with a token needs no certificate and no key.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise Misconfigured("the setting tls has only one of cert and key: give both files")

    def pair(self) -> tuple[Path, Path]:
        """Return certificate and key, which a server needs. Raises Misconfigured without them."""
        if self.cert is None or self.key is None:
            raise Misconfigured(
                "the setting tls has only ca: a server also needs cert and key; give both"
            )
        return self.cert, self.key

    def read(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return authority, certificate and key. Raises Misconfigured: one of the files can't be
        read.
        """
        try:
            if self.cert is None or self.key is None:
                return self.ca.read_bytes(), None, None
            return self.ca.read_bytes(), self.cert.read_bytes(), self.key.read_bytes()
        except OSError as error:
            raise Misconfigured(
                f"a TLS file (ca, cert or key) can't be read: {error}; check the path and its"
                " permissions"
            ) from error


class Rotation:
    """Detects changes of TLS files; checks them at most every LOOK_EVERY seconds."""

    def __init__(self, tls: TLS | None) -> None:
        self._files = [file for file in (tls.ca, tls.cert, tls.key) if file] if tls else []
        self._seen = self._stamps()
        self._looked = boottime()

    def turned(self) -> bool:
        """Return whether the files have changed since this last returned True."""
        if not self._files or boottime() - self._looked < LOOK_EVERY:
            return False
        self._looked = boottime()
        before, self._seen = self._seen, self._stamps() or self._seen
        return self._seen != before

    def _stamps(self) -> list[tuple[int, int, int]]:
        """Return stamps that change with the files; none if a file is missing at the moment."""
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return []
        return [(one.st_mtime_ns, one.st_ino, one.st_size) for one in found]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`, the host without brackets. Raises
    ValueError: it is neither. The part before an `@`, perhaps a password, isn't repeated.
    """
    if "@" in address:
        raise ValueError("an address isn't valid: it contains an @; write host:port")
    host, colon, port = address.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise ValueError(f"address {address!r} isn't valid: write host:port")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(
            f"address {address!r} isn't valid: write host:port, or [address]:port for IPv6,"
            " such as [fd00::7]:7420"
        )
    host = host[1:-1] if bracketed else host
    if not host or "/" in host:
        raise ValueError(f"address {address!r} isn't valid: write host:port")
    if not _may_be_host(host, bracketed=bracketed):
        raise ValueError(
            f"address {address!r} isn't valid: {host!r} isn't a valid host name; write host:port"
        )
    return host, int(port)


def against_each(
    addresses: Sequence[str],
    against: Callable[[str], str],
    users: str = "no address takes a user or password: one has an @ in it",
) -> Iterator[str]:
    """Return the problem of each address in a list by `against`, "" for a valid one. An address
    that may contain a part of a password isn't repeated. A password comes before an `@` and may
    contain commas, so if any address has an `@`, `users` is the only problem.
    """
    if any("@" in address for address in addresses):
        yield users
    else:
        yield from filter(None, map(against, addresses))


def _may_be_host(host: str, *, bracketed: bool) -> bool:
    """Return whether it can be a name or an IPv4 address in any notation: `127.1` is valid,
    `256.0.0.1` isn't. `bracketed`: it must be an IPv6 address.
    """
    if bracketed:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    dotted = _DOTTED.fullmatch(host)
    if dotted and any(int(part) > 0xFF for part in dotted.groups()):
        return False
    return bool(_HOST.fullmatch(host))


_PORT: Final = re.compile(r"[0-9]{1,5}")
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_DOTTED: Final = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)")


def is_loopback(host: str) -> bool:
    """Return whether data sent to this host stays on it. The only such name is `localhost`."""
    if host.lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def check_plaintext(address: str, insecure: bool, section: str = "") -> None:
    """Check the loopback rule: without TLS, only loopback is permitted, unless the operator has set
    `insecure` in this section of the configuration. Raises Misconfigured: `address` can be reached
    from elsewhere and `insecure` is false. ValueError: `address` isn't host:port.
    """
    host, _ = split_address(address)
    under = f" under [{section}]" if section else ""
    if not insecure and not is_loopback(host):
        raise Misconfigured(
            f"the address {address} can be reached from other hosts, but TLS isn't configured:"
            f" set tls (ca, cert, key); or set insecure = true{under} to send everything"
            " unencrypted"
        )


def connect(endpoint: str, *, tls: TLS | None, use: str = "") -> grpc.aio.Channel:
    """Open a channel to `host:port`. It connects lazily and reconnects; the caller closes it.
    Channels of one process to one address share a connection, and with it MAX_STREAMS, unless their
    `use` differs. The certificate files are read now; a channel keeps its first certificate.
    """
    options = (*CLIENT_OPTIONS, *((("schedd.use", use),) if use else ()))
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=options)
    ca, cert, key = tls.read()
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    return grpc.aio.secure_channel(endpoint, credentials, options=options)


def listen(
    server: grpc.aio.Server, address: str, tls: TLS | None, *, certificates: bool = True
) -> int:
    """Bind a server (made with `SERVER_OPTIONS`) to `host:port`; port 0 picks a free one.

    With TLS each client must show a certificate of the authority. If `certificates` is false, none
    is requested; gRPC offers nothing between the two. Files that change on disk take effect at the
    next handshake.

    Returns:
        The port.

    Raises:
        Misconfigured: the address can't be bound, or a TLS file can't be read.
    """
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _server_credentials(tls, certificates))
    except RuntimeError as error:
        raise Misconfigured(
            f"can't listen on {address}: {error}; use a free port, and an address of this host"
        ) from error


def _server_credentials(tls: TLS, certificates: bool) -> grpc.ServerCredentials:
    last, pair = tls.read(), tls.pair()
    if why := unfit(*pair):  # gRPC would report an unavailable port instead
        raise Misconfigured(why)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Return a changed configuration, or None to keep the current one. gRPC calls this at each
        handshake.
        """
        nonlocal last
        try:
            now = tls.read()
        except Misconfigured as error:
            log.warning("new certificate rejected, the old one stays in use: %s", error)
            return None
        if now == last:
            return None
        if why := unfit(*pair):  # gRPC would silently keep its files
            log.warning("new certificate rejected, the old one stays in use: %s", why)
            return None
        last = now
        log.info("certificate changed on disk: using %s from now on", tls.cert)
        return _configuration(*now)

    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", changed)  # stubs lack None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(*last), fetch, require_client_authentication=certificates
    )


def _configuration(
    ca: bytes, cert: bytes | None, key: bytes | None
) -> grpc.ServerCertificateConfiguration:
    assert cert is not None, "`pair` has checked both"
    assert key is not None
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


def listening(address: str, backlog: int) -> socket.socket:
    """Return a listening socket at host:port (port 0: any free port). If a name has several
    addresses, its first IPv4 address is used, if any.

    The socket names its protocol, because asyncio sets TCP_NODELAY only then. Without it the body
    of each answer waits 40 ms, until the client has acknowledged the head. Raises ValueError: the
    address can't be parsed. OSError: it can't be bound.
    """
    host, port = split_address(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda one: one[0] is not socket.AF_INET)
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
