"""Call the user code of one attempt: from the payload to the outcome.

    payload ─decode, fit→ handler(payload, ctx) ─returned │ raised→ Outcome

The call runs on a loop of handlers or in a thread, never on the worker's loop: the payload's type
and the returned or raised values are user code, too.

Invariants
- Neither `awaited` nor `called` raises, whatever user code raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from schedclient import handlers as sdk
from workerd.core.outcome import SUCCESS, AttemptOutcome, Content
from workerd.executors.base import AttemptStart
from workerd.executors.handlers.current_run import CurrentRun, current
from workerd.executors.handlers.invocation import decoded, raised, returned, unfit
from workerd.executors.handlers.large_json import LARGE, beside, beside_surely, light
from workerd.executors.handlers.payload_types import Fit, PayloadMismatch
from workerd.logs.run_output import current_output
from workerd.messages import date_at

CANCELED: Final = (
    "CancelledError: the handler raised it, or other code in the worker canceled its task; "
    "no cancel of this run was requested"
)


class HandlerCall:
    """A call of a user's function. Belongs to the thread that runs it."""

    __slots__ = ("_check", "_function", "_given", "_most", "context", "run")

    def __init__(
        self,
        attempt: AttemptStart,
        handler: str,
        function: Callable[..., Any],
        given: Sequence[tuple[Fit, Content | None]],
        check: Callable[[Any], object] | None = None,
    ) -> None:
        """`given`: the function's arguments before the context, with their converters.
        `check`: raises ValueError for an invalid first argument.
        """
        self.run = CurrentRun(attempt, handler)
        batch, place = attempt.batch, attempt.place
        given_to_all, (run, token) = batch.common, batch.keys[place]
        self.context = sdk.Context(
            namespace=given_to_all.namespace,
            job=batch.job(place),
            run_id=run,
            attempt=given_to_all.attempt,
            scheduled_at=date_at(batch.scheduled[place]),
            deadline=attempt.deadline,
            fencing_token=token,
            traceparent=batch.traceparent(place),
            worker=attempt.worker,
            on_heartbeat=attempt.beat,
            on_progress=attempt.progress,
            on_log=self._log,
        )
        self._function = function
        self._given = given
        self._check = check
        self._most = attempt.most_result

    async def awaited(self) -> AttemptOutcome:
        """Call the function and await its result, in a separate task."""
        current.set(self.run)
        current_output.set(self.run)
        try:
            large = False
            for _, content in self._given:
                large = large or (content is not None and len(content.data) > LARGE)
            values = await beside(self._values) if large else self._values()
        except BaseException as error:  # noqa: BLE001 - a user's type may raise anything
            return self._misread(error)
        try:
            answer = await self._function(*values, self.context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return self._raised(error)
        if answer is None:
            return SUCCESS
        try:
            small = light(answer)
        except BaseException as error:  # noqa: BLE001 - a value may raise when it is looked at
            return self._raised(error)
        if small:
            return self._returned(answer)
        return await beside_surely(partial(self._returned, answer))

    def called(self) -> AttemptOutcome:
        """Call the function in this thread."""
        token, output = current.set(self.run), current_output.set(self.run)
        try:
            try:
                values = self._values()
            except BaseException as error:  # noqa: BLE001 - as above
                return self._misread(error)
            try:
                answer = self._function(*values, self.context)
            except BaseException as error:  # noqa: BLE001 - as above
                return self._raised(error)
            return self._returned(answer)
        finally:
            current_output.reset(output)
            current.reset(token)

    def _log(self, text: str) -> None:
        self.run.write(True, text.encode(errors="backslashreplace"))

    def _raised(self, error: BaseException) -> AttemptOutcome:
        outcome = raised(error)
        if isinstance(error, asyncio.CancelledError) and not error.args:
            outcome = replace(outcome, error=CANCELED)
        for piece in outcome.output:
            self.run.write(piece.stderr, piece.data)
        return outcome

    def _misread(self, error: BaseException) -> AttemptOutcome:
        if isinstance(error, ValueError | RecursionError):
            return unfit(error)
        return self._raised(error)

    def _values(self) -> Sequence[object]:
        try:
            values = []
            for fit, content in self._given:
                values.append(fit(None if content is None else decoded(content)))
        except PayloadMismatch:
            raise
        except (ValueError, RecursionError) as error:
            raise PayloadMismatch(f"payload isn't JSON: {error}") from error
        if self._check is not None:
            self._check(values[0])
        return values

    def _returned(self, answer: object) -> AttemptOutcome:
        try:
            return returned(answer, self._most)
        except BaseException as error:  # noqa: BLE001 - a value may raise when it is looked at
            return self._raised(error)
