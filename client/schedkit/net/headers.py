"""Headers, metadata and variables that a job may not set: schedd or the client sets them."""

from typing import Final

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
