"""Parse the endpoint and method of a gRPC job, for members and workers.

host:port                   in the clear
grpcs://host:port           with TLS
package.Service/Method      a method found by reflection
"""

import re
from typing import Final

from schedkit.net.channel import split_address
from schedkit.records import dataclass

_TLS: Final = "grpcs://"
_WORD: Final = "[A-Za-z_][A-Za-z0-9_]{0,254}"
_METHOD: Final = re.compile(rf"((?:{_WORD}\.)*{_WORD})/({_WORD})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a service."""

    host: str
    """A name or an address; an IPv6 address without brackets."""
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """The authority of the service: `host:port` or `[v6]:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def endpoint_of(text: str) -> Endpoint:
    """Parse an endpoint. Raises ValueError: it isn't a valid endpoint."""
    tls = text.startswith(_TLS)
    try:
        host, port = split_address(text.removeprefix(_TLS))
        if not port or "%" in host:  # a link of this host
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{text[:140]!r} isn't a valid endpoint: write host:port (without TLS) or"
            f" {_TLS}host:port (with TLS)"
        ) from None
    return Endpoint(host, port, tls)


def method_of(text: str) -> tuple[str, str]:
    """Return the full name of a service, and the name of its method. Raises ValueError: the text
    names no method.
    """
    named = _METHOD.fullmatch(text)
    if named is None:
        raise ValueError(f"{text[:140]!r} isn't a valid gRPC method: write package.Service/Method")
    return named[1], named[2]


FRAMING: Final = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Framing and connection headers, set by the HTTP client."""
OURS: Final = "schedd-"
"""Headers that identify the run to the receiver."""


SIGNED: Final = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
"""Headers of a signed request."""


def reserved(name: str, *, signed: bool = False) -> bool:
    """Return whether a job may not set this header, in any case."""
    lower = name.lower()
    return lower in FRAMING or lower.startswith(OURS) or (signed and lower in SIGNED)


RPC: Final = frozenset({"content-type", "host", "user-agent"})
"""Headers of a gRPC call, beside those that begin with `grpc-`."""


def reserved_metadata(name: str) -> bool:
    """Return whether a job may not set this metadata, in any case."""
    lower = name.lower()
    return reserved(name) or lower in RPC or lower.startswith("grpc-")


def reserved_variable(name: str) -> bool:
    """Return whether a job may not set this variable of its program: schedd sets it."""
    return name.startswith("SCHEDD_")
