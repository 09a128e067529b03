"""The names of things, each with a type of its own so that they can't be mixed up."""

from __future__ import annotations

from typing import NamedTuple, NewType

RunId = NewType("RunId", str)
Token = NewType("Token", int)
"""Fencing token of an assignment; for one run every later one is greater."""
Incarnation = NewType("Incarnation", str)
"""One registration of this worker, a UUID."""
Address = NewType("Address", str)
"""Where a member listens, `host:port`."""


class AssignmentKey(NamedTuple):
    """One handing out of one run."""

    run: RunId
    token: Token

    @property
    def said(self) -> dict[str, object]:
        """For a line of log that is about it, as `extra`."""
        return {"run_id": self.run, "token": self.token}
