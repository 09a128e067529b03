"""Validate a DSN without connecting: libpq itself checks values and files only as it connects.

    postgresql://USER@HOST/DATABASE ? sslmode=verify-full & sslrootcert=/etc/ca.pem
        options after the ? ─▶ their names, parsed by libpq
            ─▶ hosts, ports ─▶ values of some options ─▶ files that libpq needs to connect

Messages repeat no values, except of options with a fixed set of words and of files: the part where
a host is expected may be the end of a password.
"""

import errno
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from psycopg2 import ProgrammingError
from psycopg2.extensions import make_dsn, parse_dsn
from sqlalchemy.exc import ArgumentError

from schedd.store.connection.database import url_of
from schedkit.errors import Misconfigured
from schedkit.net.channel import split_address
from schedkit.net.credentials import unreadable

ONE: Final = "postgresql://USER@HOST/DATABASE"
SEVERAL: Final = (
    f"{ONE}, or with several hosts"
    " postgresql://USER@HOST1:5432,HOST2:5432/DATABASE?target_session_attrs=read-write"
)

_BEHIND: Final = re.compile(r"[^:]*://(?>(?:[^:/]*(?::[^@]*)?@)?)[^?]*\?(.*)", re.DOTALL)
"""The options as SQLAlchemy splits them off: a `?` before the first `@` belongs to the password."""
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcertmode": ("disable", "allow", "require"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
}
_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
"""The only option values whose case doesn't matter."""
_VERSIONED: Final = ("ssl_min_protocol_version", "ssl_max_protocol_version")
_NUMBERS: Final = (
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
    *("keepalives_count", "tcp_user_timeout"),
)
_SYSTEM: Final = "system"
"""The value of `sslrootcert` for OpenSSL's default certificates, instead of a file."""
_PORT: Final = re.compile(r"0*[1-9][0-9]{0,4}")
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,9}\s*")


def faults(dsn: str) -> Iterator[str]:
    """Return the reasons, in words, why libpq would reject the DSN."""
    try:
        url = url_of(dsn)
    except Misconfigured:
        several = "," in dsn.partition("://")[2].partition("?")[0]
        yield f"must be a URL such as {SEVERAL if several else ONE}"
        return
    if (behind := _BEHIND.match(dsn)) and "@" in behind[1]:
        yield "has an @ behind its ?: write %40 for it, and %3F for a ? in a password"
        return
    try:
        arguments, options = url.get_dialect()().create_connect_args(url)
        if any("\0" in text for text in (*options, *map(str, options.values()))):
            yield "contains a NUL (%00), which libpq rejects"
            return
        given = parse_dsn(make_dsn(*arguments, **options))
    except UnicodeEncodeError:
        yield "isn't UTF-8"
        return
    except (ProgrammingError, ArgumentError) as error:
        yield str(error).strip().removeprefix("invalid dsn: ")
        return
    yield from _unreached(given)
    for name, words in _WORDS.items():
        if name in given and given[name] not in words:
            yield f"{name} must be one of {', '.join(words)}, not {given[name]!r}"
    for name in _VERSIONED:
        if name in given and given[name].lower() not in map(str.lower, _VERSIONS):
            yield f"{name} must be one of {', '.join(_VERSIONS)}, not {given[name]!r}"
    for name in _NUMBERS:
        if name in given and not _NUMBER.fullmatch(given[name]):
            yield f"{name} must be a whole number"
    yield from _unread(given)


def _unreached(given: Mapping[str, str]) -> Iterator[str]:
    """Return what is wrong with hosts and ports. `/…` and `@…` are Unix sockets."""
    hosts = [host for host in given.get("host", "").split(",") if host and host[0] != "/"]
    if any("@" in host[1:] for host in hosts):
        yield "has an @ in its host: write %40 for one in a password"
    elif not all(host[0] == "@" or _is_host(host) for host in hosts):
        yield "has an invalid host; write %2F for each / of a socket directory"
    for port in given.get("port", "").split(","):
        if port and not (_PORT.fullmatch(port) and int(port) <= 0xFFFF):
            yield "has a port that isn't from 1 to 65535"


def _unread(given: Mapping[str, str]) -> Iterator[str]:
    """Return the unreadable files without which libpq doesn't connect. A test compares with libpq.

    libpq connects without TLS where `sslmode` allows it, and always over Unix sockets. A missing
    client certificate counts as none, unless `sslcertmode` requires one. The key is read after
    the certificate. Revocation lists may be missing.
    """
    root, cert, key = (given.get(name, "") for name in ("sslrootcert", "sslcert", "sslkey"))
    mode = given.get("sslmode", "verify-full" if root == _SYSTEM else "prefer")
    shows = given.get("sslcertmode", "allow")
    hosts = (given.get("hostaddr") or given.get("host", "")).split(",")
    by_tls = mode in {"require", "verify-ca", "verify-full"} and not any(map(_is_socket, hosts))
    if not by_tls and shows != "require":
        return
    if root and root != _SYSTEM and (mode.startswith("verify") or not _missing(root)):
        yield from _file_fault("sslrootcert", root)
    if not cert or shows == "disable":
        return
    there = _missing(cert) not in {errno.ENOENT, errno.ENOTDIR}
    if there or shows == "require":
        yield from _file_fault("sslcert", cert)
    if there and key and ":" not in key:  # with a colon the key is one of an OpenSSL engine
        yield from _file_fault("sslkey", key)


def _file_fault(name: str, file: str) -> Iterator[str]:
    if why := unreadable(Path(file)):
        yield f"{name}: {why}"


def _missing(file: str) -> int:
    """Return why the file can't be found (`errno`); 0 if it exists."""
    try:
        Path(file).stat()
    except OSError as error:
        return error.errno or errno.ENOENT
    return 0


def _is_socket(host: str) -> bool:
    """Return whether this is a Unix socket, which libpq uses where no host is named, too."""
    return not host or host[0] in "/@"


def _is_host(text: str) -> bool:
    try:
        split_address(f"[{text}]:1" if ":" in text else f"{text}:1")
    except ValueError:
        return False
    return True
