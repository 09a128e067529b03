"""Load of users during a run: every call is recorded when it begins and when it ends.

A call ends `ok`, `fail` (refused: nothing was done) or `unknown` (no answer, or one that says so:
it may have happened). Two threads: one submits, with idempotency keys, some of them twice, and
cancels what takes long; one makes a job, triggers, pauses, resumes, edits and deletes it, round and
round.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from faults.history import ClientEvent, Recorder
from faults.probes import EDITED, VICTIM, DatabaseProbe, once
from schedclient import SyncClient
from schedclient.errors import ApiError, RequestError

WAIT_TIMEOUT = 6.0
"""Seconds a call may take; then its outcome is unknown."""
LONG = 4.0
"""Seconds of the work that is cancelled while it waits or runs."""
EACH_CANCELLED = 6
"""Share of submits: one in so many."""


class Caller:
    """User: its calls, recorded. Safe to use from one thread at a time; ops are shared."""

    def __init__(
        self, endpoints: Sequence[str], recorder: Recorder, ops: Iterator[int], probes: Path
    ) -> None:
        self._client = SyncClient(endpoints, timeout=WAIT_TIMEOUT)
        self._recorder = recorder
        self._ops = ops
        self.probes = probes

    def close(self) -> None:
        """End its connections."""
        self._client.close()

    def create(self, probe: DatabaseProbe) -> str | None:
        """Make a job; its id, or None where the answer isn't known."""
        began = time.time()
        name, spec = probe.name, probe.spec(self.probes)
        args = {"name": name, "namespace": "default"}
        op, answer = self._call(
            "create",
            args,
            lambda: self._client.jobs.create(name, **spec, deadline=WAIT_TIMEOUT),
            lambda job: {"job_id": job.job_id, "generation": job.generation},
        )
        job_id = str(answer["job_id"]) if answer else None
        self._recorder.job(probe.definition(began, job_id, 1, op))
        return job_id

    def edit(self, probe: DatabaseProbe, job_id: str, generation: int) -> bool:
        """Give a job another schedule; `generation`: the one it will have."""
        began = time.time()
        op, answer = self._call(
            "edit",
            {"job_id": job_id, "name": probe.name},
            lambda: self._client.jobs.update(
                probe.name, cron=probe.cron or (), mask=["cron"], deadline=WAIT_TIMEOUT
            ),
            lambda job: {"job_id": job.job_id, "generation": job.generation},
        )
        self._recorder.job(probe.definition(began, job_id, generation, op))
        return answer is not None

    def change(self, call: str, name: str, job_id: str | None) -> bool:
        """pause, resume or delete a job; whether it is known to have happened."""
        act = getattr(self._client.jobs, call)
        args = {"job_id": job_id, "name": name, "namespace": "default"}
        _, answer = self._call(call, args, lambda: act(name, deadline=WAIT_TIMEOUT), lambda _: {})
        return answer is not None

    def trigger(self, name: str, job_id: str, key: str) -> None:
        """A run of a job now, under an idempotency key."""
        self._call(
            "trigger",
            {"job_id": job_id, "name": name, "idempotency_key": key},
            lambda: self._client.jobs.trigger(name, idempotency_key=key, deadline=WAIT_TIMEOUT),
            lambda run: {"run_id": run.run_id},
        )

    def cancel(self, run_id: str) -> None:
        """End a run."""
        args = {"run_id": run_id}
        act = partial(self._client.runs.cancel, run_id, deadline=WAIT_TIMEOUT)
        self._call("cancel", args, act, lambda run: {"state": str(run.state)})

    def submit(self, key: str, lasts: float = 0.0, *, delay: str | None = None) -> str | None:
        """Submit work once under an idempotency key; return the run's id if it is known."""
        work = once(self.probes, lasts)
        _, answer = self._call(
            "submit",
            {"idempotency_key": key},
            lambda: self._client.submit(
                **work, delay=delay, idempotency_key=key, deadline=WAIT_TIMEOUT
            ),
            lambda run: {"run_id": run.run_id, "job_id": run.job_id},
        )
        return str(answer["run_id"]) if answer else None

    def _call(
        self,
        call: str,
        args: dict[str, Any],
        act: Callable[[], Any],
        read: Callable[[Any], dict[str, Any]],
    ) -> tuple[int, dict[str, Any] | None]:
        op = next(self._ops)
        self._recorder.client(ClientEvent(op, "invoke", time.time(), call, args))
        try:
            answer = read(act())
        except ApiError as error:
            phase: Literal["fail", "unknown"] = (
                "fail" if isinstance(error, RequestError) else "unknown"
            )
            failure = {"code": error.status, "message": f"{error.reason} {error.what}"[:300]}
            self._recorder.client(ClientEvent(op, phase, time.time(), call, args, None, failure))
            return op, None
        self._recorder.client(ClientEvent(op, "ok", time.time(), call, args, answer))
        return op, answer


class Load:
    """Two users in threads of their own, from `begin` to `end`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        recorder: Recorder,
        ops: Iterator[int],
        probes: Path,
        seed: int,
        prefix: str,
    ) -> None:
        self._callers = [Caller(endpoints, recorder, ops, probes) for _ in range(2)]
        self._over = threading.Event()
        self._random = random.Random(seed)
        self._prefix = prefix
        self._threads = [
            threading.Thread(target=self._calling, name=name, args=(calls, caller))
            for (name, calls), caller in zip(
                (("submitter", self._submit), ("editor", self._edit)), self._callers, strict=True
            )
        ]
        self._failures: list[Exception] = []

    def begin(self) -> None:
        """Start calling."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Finish the calls under way, and no more.

        Raises:
            ExceptionGroup: what ended a user before its time.
            AssertionError: a user didn't come to an end.
        """
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:  # it was begun
                thread.join(WAIT_TIMEOUT * 10)
                assert not thread.is_alive(), f"the {thread.name} still waits for an answer"
        for caller in self._callers:
            caller.close()
        if self._failures:
            failures, self._failures = self._failures, []
            raise ExceptionGroup("users that called no more", failures)

    def _calling(self, calls: Callable[[Caller], None], caller: Caller) -> None:
        try:
            calls(caller)
        except Exception as error:  # noqa: BLE001 - raised again by `end`
            self._failures.append(error)

    def _submit(self, caller: Caller) -> None:
        previous = ""
        for number in itertools.count(1):
            if self._over.wait(0.4):
                return
            if number % EACH_CANCELLED == 0:
                if run_id := caller.submit(f"{self._prefix}-{number}", LONG):
                    caller.cancel(run_id)
                continue
            again = previous and self._random.random() < 0.15
            key = previous if again else f"{self._prefix}-{number}"
            caller.submit(key)
            previous = key

    def _edit(self, caller: Caller) -> None:
        for number in itertools.count(1):
            name = f"{self._prefix}-victim-{number}"
            victim, edited = replace(VICTIM, name=name), replace(EDITED, name=name)
            job_id = caller.create(victim)
            steps: list[Callable[[], object]] = [
                partial(caller.change, "pause", name, job_id),
                partial(caller.change, "resume", name, job_id),
            ]
            if job_id is not None:
                steps.insert(0, partial(caller.trigger, name, job_id, name))
                steps.append(partial(caller.edit, edited, job_id, 2))
            for step in steps:
                if not self._over.wait(1.1):
                    step()
            self._over.wait(1.1)
            _until_deleted(caller, name, job_id)
            if self._over.is_set():
                return


def _until_deleted(caller: Caller, name: str, job_id: str | None) -> None:
    """Delete a job for sure: where the answer isn't known, ask again."""
    for _ in range(8):
        if caller.change("delete", name, job_id):
            return
