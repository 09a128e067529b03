"""Whether libpq can connect by a DSN's options: judged without a call, for else each try fails.

    postgresql://USER@HOST/DATABASE ? sslmode=verify-full & sslrootcert=/etc/ca.pem
        the options' names, by libpq's own reading ─▶ values of a known few ─▶ files, ports

libpq itself looks at values and files only as it connects. No value is repeated in a message, but
of an option that takes one of a few words and of files.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from psycopg2 import ProgrammingError
from psycopg2.extensions import make_dsn, parse_dsn
from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError

from schedkit.channel import split_address
from schedkit.credentials import unreadable

_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcertmode": ("disable", "allow", "require"),
    "ssl_min_protocol_version": _VERSIONS,
    "ssl_max_protocol_version": _VERSIONS,
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
}
_NUMBERS: Final = (
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
    *("keepalives_count", "tcp_user_timeout"),
)
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_NO_FILES: Final = {"sslrootcert": "system"}
"""Words that stand for what OpenSSL has itself."""
_PORT: Final = re.compile(r"0*[1-9][0-9]{0,4}")
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,9}\s*")


def faults(url: URL) -> Iterator[str]:
    """What libpq would have against it, in words."""
    if any("@" in f"{name}{value}" for name, value in url.query.items()):
        yield "has an @ behind its ?: write %40 and %3F for those in a password"
        return
    try:
        arguments, options = url.get_dialect()().create_connect_args(url)
        given = parse_dsn(make_dsn(*arguments, **options))
    except (ProgrammingError, ArgumentError) as error:
        yield str(error).strip().removeprefix("invalid dsn: ")
        return
    for host in given.get("host", "").split(","):
        if host and host[0] not in "/@" and not _is_host(host):  # else one of UNIX
            yield f"has a host that is none: {host!r}"
    for port in given.get("port", "").split(","):
        if port and not (_PORT.fullmatch(port) and int(port) <= 0xFFFF):
            yield "has a port that isn't from 1 to 65535"
    for name, words in _WORDS.items():
        if name in given and given[name].lower() not in {word.lower() for word in words}:
            yield f"{name} must be one of {', '.join(words)}, not {given[name]!r}"
    for name in _NUMBERS:
        if name in given and not _NUMBER.fullmatch(given[name]):
            yield f"{name} must be a whole number"
    for name in _FILES:
        file = given.get(name, "")
        if file and file != _NO_FILES.get(name) and (why := unreadable(Path(file))):
            yield f"{name}: {why}"


def _is_host(text: str) -> bool:
    try:
        split_address(f"[{text}]:1" if ":" in text else f"{text}:1")
    except ValueError:
        return False
    return True
