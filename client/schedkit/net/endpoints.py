"""Parse the endpoint and method of a gRPC job, for members and workers.

host:port                   in the clear
grpcs://host:port           with TLS
package.Service/Method      a method found by reflection
"""

import re
from dataclasses import dataclass
from typing import Final

from schedkit.net.channel import split_address

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
    """Parse an endpoint.

    Raises:
        ValueError: it isn't a valid endpoint.
    """
    tls = text.startswith(_TLS)
    try:
        host, port = split_address(text.removeprefix(_TLS))
        if not port or "%" in host:  # a link of this host
            raise ValueError
    except ValueError:
        forms = f"host:port (without TLS) or {_TLS}host:port (with TLS)"
        raise ValueError(f"{text[:140]!r} isn't a valid endpoint: write {forms}") from None
    return Endpoint(host, port, tls)


def method_of(text: str) -> tuple[str, str]:
    """Return the full name of a service, and the name of its method.

    Raises:
        ValueError: the text names no method.
    """
    named = _METHOD.fullmatch(text)
    if named is None:
        raise ValueError(f"{text[:140]!r} isn't a valid method: write package.Service/Method")
    return named[1], named[2]
