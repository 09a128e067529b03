"""Headers, metadata and variables that a job may not set: schedd's own, which tell of its run."""

from __future__ import annotations

from typing import Final

FRAMING: Final = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""They say where a message ends and what becomes of its connection: the client's own to set."""
OURS: Final = "schedd-"
"""By these the receiver knows the run, so no job may write others' facts there."""


SIGNED: Final = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
"""A signed request has its own."""


def reserved(name: str, *, signed: bool = False) -> bool:
    """Whether a job may not set this header, in whatever case it is written."""
    lower = name.lower()
    return lower in FRAMING or lower.startswith(OURS) or (signed and lower in SIGNED)


RPC: Final = frozenset({"content-type", "host", "user-agent"})
"""Of a gRPC call, beside what begins with `grpc-`."""


def reserved_metadata(name: str) -> bool:
    """Whether a job may not set this metadata, in whatever case it is written."""
    lower = name.lower()
    return reserved(name) or lower in RPC or lower.startswith("grpc-")


def reserved_variable(name: str) -> bool:
    """Whether a job may not set this variable of its program: in them it is told of its run."""
    return name.startswith("SCHEDD_")
