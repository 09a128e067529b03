"""Server-sent events as curl reads them.

with Events(address, "job=etl") as stream:
wait_until(lambda: "SUCCEEDED" in stream.states(run_id), WAIT_TIMEOUT, "its end")
again = Events(other, "job=etl", after=stream.last_id)
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self

from support.wait import WAIT_TIMEOUT, WaitTimedOut, wait_until


@dataclass(frozen=True)
class ServerEvent:
    """An event, and when it arrived (seconds since 1970). `data` parses the text on demand: two
    hundred thousand events arrive in a few seconds.
    """

    at: float
    id: str
    name: str
    text: str

    @cached_property
    def data(self) -> Any:
        """The parsed text."""
        return json.loads(self.text)


FIELDS: Final = frozenset({"id", "event", "data", ""})
"""Beginnings of lines: fields, comments, and the empty line after an event."""


def begun(*streams: Events, within: float = WAIT_TIMEOUT) -> None:
    """Wait until each has an id, so many seconds at most.

    Raises:
        WaitTimedOut: with what the other streams received.
    """
    try:
        wait_until(lambda: all(one.last_id for one in streams), within, "streams to begin")
    except WaitTimedOut as timeout:
        left = [one.account for one in streams if not one.last_id]
        raise WaitTimedOut(
            f"{timeout}; of {len(streams)} {len(left)} haven't: {left[:5]}"
        ) from None


class Events:
    """A stream of `/api/v1/events` from one member, read in a thread."""

    def __init__(self, address: str, query: str = "", after: str = "") -> None:
        argv = ["curl", "-sN", f"http://{address}/api/v1/events?{query}"]
        if after:
            argv += ["-H", f"Last-Event-ID: {after}"]
        self.received: list[ServerEvent] = []
        self.said: list[str] = []
        """Lines that are no event's: why there is no stream."""
        self.last_id = ""
        self.ended_at: float | None = None
        self._curl = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._curl.terminate()
        self._curl.wait()
        self._thread.join()

    @property
    def runs(self) -> list[ServerEvent]:
        """The events of runs."""
        return [one for one in self.received if one.name == "" and one.data.get("run")]

    @property
    def account(self) -> str:
        """Return a summary of the stream, for messages of failed tests."""
        last = [f"{one.name or 'run'} {one.text[:200]}" for one in self.received[-1:]]
        state = "open" if self.ended_at is None else "ended"
        return f"{state}, {len(self.received)} events, last {last}, other lines {self.said[-3:]}"

    def states(self, run_id: str) -> list[str]:
        """Return the received states of a run, in order."""
        return [one.data["run"]["state"] for one in self.runs if one.data["run"]["runId"] == run_id]

    def _read(self) -> None:
        assert self._curl.stdout is not None
        fields: dict[str, str] = {}
        for line in self._curl.stdout:
            key, _, value = line.rstrip("\n").partition(": ")
            if key not in FIELDS:
                self.said.append(line)
                continue
            if key:
                fields[key] = value
                continue
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                id_, name = fields.get("id", ""), fields.get("event", "")
                self.received.append(ServerEvent(time.time(), id_, name, fields["data"]))
            fields = {}
        self.ended_at = time.time()
