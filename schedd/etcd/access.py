"""Access to etcd: endpoints, TLS and user, and the options of a channel.

Invariants
- The password is in no repr, so in no log.
- TLS applies to all endpoints or to none: an `https` endpoint needs `tls`, and with `tls` no
  endpoint is plain.
- Each channel has its own connections (grpc would share them between equal channels). A proxy from
  the environment is never used.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from schedkit.errors import Misconfigured, Rejected
from schedkit.net.channel import against_each, split_address

_MIB: Final = 1024 * 1024
_PORT: Final = re.compile(r"[0-9]+")

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.max_receive_message_length", 64 * _MIB),
    ("grpc.max_send_message_length", 4 * _MIB),
    # etcd ends connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # also the TCP user timeout
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # bounds one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files. `ca` None: the system's. `cert`, `key`: only if etcd requires a client's."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) is not (self.key is None):
            raise Misconfigured("the settings etcd.cert and etcd.key must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the files as they are now. Raises Rejected: a file can't be read, for example in
        the middle of a rotation.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.cert),
        )


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise Rejected(
            "certificate_unreadable",
            f"etcd: the TLS file {path} can't be read: {error.strerror}",
            "Restore the file, and make it readable for the user of schedd",
        ) from error


class Login(NamedTuple):
    user: str
    password: str


@dataclass(slots=True)
class EtcdAccess:
    """The endpoints of etcd, with user and TLS. `endpoints`: `host:port`, or `http://host:port`,
    or `https://host:port` (with `tls` only). `login` may be replaced at any time: the next login
    to etcd uses the new one. `prefix`: the keys that the user must be able to read and write.
    """

    endpoints: tuple[str, ...]
    tls: EtcdTls | None = None
    user: InitVar[str | None] = None
    password: InitVar[str | None] = None
    prefix: str = "schedd/"
    login: Login | None = field(init=False, repr=False)

    def __post_init__(self, user: str | None, password: str | None) -> None:
        if not self.endpoints:
            raise Misconfigured("etcd: no endpoint is given; set etcd.endpoints")
        if (user is None) is not (password is None):
            raise Misconfigured("the settings etcd.user and etcd.password must be given together")
        self.login = None if user is None or password is None else Login(user, password)
        for why in against(self.endpoints, encrypted=self.tls is not None):
            raise Misconfigured(f"etcd: {why}")

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(endpoint.rpartition("://")[2].rstrip("/") for endpoint in self.endpoints)

    def open_channel(self, library: Any, position: int) -> Any:
        """Return a new channel of `grpc` or `grpc.aio` to this endpoint, with the files as they are
        now. Raises Rejected if one can't be read.
        """
        target = self.targets[position]
        if self.tls is None:
            return library.insecure_channel(target, options=CHANNEL_OPTIONS)
        return library.secure_channel(target, self.tls.credentials(), options=CHANNEL_OPTIONS)


def against(endpoints: Sequence[str], *, encrypted: bool) -> Iterator[str]:
    """Return why these endpoints can't be used, in words."""
    users = "an endpoint must not contain a user; give etcd.user and etcd.password"
    return against_each(endpoints, partial(_against, encrypted), users)


def _against(encrypted: bool, endpoint: str) -> str:
    scheme, _, address = endpoint.rpartition("://")
    address = address.rstrip("/")
    if not _PORT.fullmatch(address.rpartition(":")[2]):
        return "an endpoint has no port, or an invalid one; write host:port"
    if scheme not in {"", "http", "https"}:
        return f"{endpoint!r} isn't a valid endpoint; write host:port"
    if scheme == "https" and not encrypted:
        return f"{endpoint!r} needs TLS, but TLS isn't configured; give etcd.ca"
    if scheme == "http" and encrypted:
        return f"{endpoint!r} is plaintext, but TLS is configured; write https://"
    try:
        _, port = split_address(address)
    except ValueError as error:
        return str(error)
    return "" if port else f"port 0 isn't valid: {endpoint!r}"


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each request: the token, and a flag. The flag makes an etcd member
    without a leader answer with an error.
    """
    leader = ("hasleader", "true")
    return (leader, ("token", token)) if token else (leader,)
