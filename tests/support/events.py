"""Server-sent events as curl reads them.

with Events(address, "job=etl") as stream:
wait_until(lambda: "SUCCEEDED" in stream.states(run_id), PATIENCE, "its end")
again = Events(other, "job=etl", after=stream.last_id)
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Told:
    """One event, and when it came (seconds since 1970)."""

    at: float
    id: str
    name: str
    data: Any


class Events:
    """A stream of `/api/v1/events` from one member, read in a thread."""

    def __init__(self, address: str, query: str = "", after: str = "") -> None:
        argv = ["curl", "-sN", f"http://{address}/api/v1/events?{query}"]
        if after:
            argv += ["-H", f"Last-Event-ID: {after}"]
        self.told: list[Told] = []
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
    def runs(self) -> list[Told]:
        """The events that tell of a run."""
        return [one for one in self.told if one.name == "" and one.data.get("run")]

    def states(self, run_id: str) -> list[str]:
        """What was told of a run, in order."""
        return [one.data["run"]["state"] for one in self.runs if one.data["run"]["runId"] == run_id]

    def _read(self) -> None:
        assert self._curl.stdout is not None
        fields: dict[str, str] = {}
        for line in self._curl.stdout:
            key, _, value = line.rstrip("\n").partition(": ")
            if key:
                fields[key] = value
                continue
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                data = json.loads(fields["data"])
                name = fields.get("event", "")
                self.told.append(Told(time.time(), fields.get("id", ""), name, data))
            fields = {}
        self.ended_at = time.time()
