"""Types of ids: one for each kind, so that ids can't be mixed up."""

from typing import NamedTuple, NewType

RunId = NewType("RunId", str)
Token = NewType("Token", int)
"""Fencing token of an assignment; later assignments of a run have greater tokens."""
Incarnation = NewType("Incarnation", str)
"""A registration of this worker, a UUID."""
Address = NewType("Address", str)
"""Address of a member, `host:port`."""


class AssignmentKey(NamedTuple):
    run: RunId
    token: Token

    @property
    def log_fields(self) -> dict[str, object]:
        return {"run_id": self.run, "token": self.token}
