"""Call the user code of one attempt: from the payload to the outcome.

    payload ─decode, fit→ handler(payload, ctx) ─returned │ raised→ Outcome

The call runs on a loop of handlers or in a thread, never on the worker's loop: the payload's type
and the returned or raised values are user code, too.

Invariants
- Neither `work` nor `called` raises, whatever user code raises.
- A coroutine is stopped by canceling its task, a thread by `ctx.cancel`. A handler that ignores
  that can't be ended: after a timeout or a cancel it is abandoned past `kill_after`.
- A run that would be returned, to run elsewhere, is waited for: no other worker may run it while it
  is running here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from schedclient import handlers as sdk
from schedkit.records import dataclass
from workerd.core.ids import AssignmentKey
from workerd.core.outcome import SUCCESS, AttemptOutcome, AttemptVerdict, Cause, Content, given_back
from workerd.executors.base import AttemptStart, StartedBatch, Stop, outcome_of_stop
from workerd.executors.handlers.invocation import decoded, raised, returned, unfit
from workerd.executors.handlers.large_json import LARGE, beside, beside_surely, light
from workerd.executors.handlers.payload_types import Fit, PayloadMismatch
from workerd.logs.run_output import RunOutput, creating, current_output
from workerd.messages import date_at

if TYPE_CHECKING:
    from workerd.executors.handlers.handler_loops import HandlerLoop

log = logging.getLogger(__name__)

CANCELED: Final = (
    "CancelledError: the handler raised it, or other code in the worker canceled its task; "
    "no cancel of this run was requested"
)
_FINAL = (Cause.TIMEOUT, Cause.SILENCE, Cause.CANCEL)
"""After these no other worker runs the attempt, so an abandoned handler is harmless."""
_filling: Final = threading.RLock()
"""Held by a thread of a handler that first uses a context. The worker's loop must not wait for it.
Reentrant: the cycle collector may run a user's finalizer meanwhile, which uses another context.
"""
_ENDED: Final = AttemptOutcome(AttemptVerdict.RETURNED, began=False)
"""Of a call that never began: its end was reported before, or the worker is ending."""


class AttemptContext(sdk.Context):
    """The context of a call. Its fields are set when the handler first uses one: most use none."""

    __slots__ = ("_call",)

    _call: HandlerCall

    @classmethod
    def of(cls, call: HandlerCall) -> AttemptContext:
        context = cls.__new__(cls)
        context._call = call  # noqa: SLF001 - of this class
        return context

    def __getattr__(self, name: str) -> Any:
        if name == "_call":
            raise AttributeError(name)
        with _filling:
            if self._call.cancel_flag is None:
                self._call.fill(self)
        return object.__getattribute__(self, name)


@dataclass(slots=True, eq=False)
class CalledFunction:
    """A user's function and its arguments, as its calls for a batch share them."""

    handler: str
    function: Callable[..., Any]
    fit: Fit
    """Converts the payload."""
    given: Sequence[tuple[Fit, Content | None]] = ()
    """The arguments before the payload, with their converters."""
    check: Callable[[Any], object] | None = None
    """Raises ValueError for an invalid first argument."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """The worker's."""
    large: bool = False
    """Whether an argument is large."""

    def __post_init__(self) -> None:
        self.large = any(each and len(each.data) > LARGE for _, each in self.given)


class HandlerCall:
    """A call of a user's function. Belongs to the worker's loop, except `work` and `called`."""

    home: HandlerLoop | None = None
    """The loop of handlers to which it was submitted last."""
    task: asyncio.Task[None] | None = None
    """Set by the loop on which it begins, until it ends."""
    cancel_flag: threading.Event | None = None
    """`cancel` of the context; None: the handler hasn't used the context."""
    reported = False
    """Whether the outcome was reported."""
    ended = False
    """Whether no more output is added."""
    blocked = ""
    """How long and where the handler blocked its event loop; empty if it didn't."""
    _output: RunOutput | None = None

    def __init__(self, target: CalledFunction, batch: StartedBatch, place: int) -> None:
        self.target = target
        self.batch = batch
        self.place = place

    @property
    def handler(self) -> str:
        return self.target.handler

    @property
    def attempt(self) -> AttemptStart:
        return self.batch.attempt(self.place)

    def beat(self) -> None:
        """Record a heartbeat, from any thread."""
        if (attempt := self.batch.attempts.get(self.place)) is not None:
            attempt.beat()

    def write(self, stderr: bool, data: bytes) -> None:
        """Add bytes to the run's log, from any thread."""
        output = self._output
        if output is None and not self.ended:
            with creating:
                if self._output is None:
                    self._output = RunOutput(self.attempt.find_tail, self.target.loop)
                output = self._output
        if output is not None and not self.ended:  # `ended` is set before `_output` is read
            output.write(stderr, data)

    @property
    def key(self) -> AssignmentKey:
        return self.batch.assigned.keys[self.place]

    @property
    def log_fields(self) -> dict[str, object]:
        """Log keys, for `extra`."""
        job = self.batch.assigned.job(self.place)
        return {"handler": self.handler, "job": job, **self.key.log_fields}

    def fill(self, context: sdk.Context) -> None:
        batch, place = self.batch, self.place
        assigned, (run, token) = batch.assigned, self.key
        common = assigned.common
        sdk.Context.__init__(
            context,
            namespace=common.namespace,
            job=assigned.job(place),
            run_id=run,
            attempt=common.attempt,
            scheduled_at=date_at(assigned.scheduled[place]),
            deadline=batch.deadlines[place],
            fencing_token=token,
            traceparent=assigned.traceparent(place),
            worker=batch.worker,
            on_heartbeat=self.beat,
            on_progress=self._report_progress,
            on_log=self._log,
        )
        self.cancel_flag = context.cancel
        stop = self._stop
        if self.reported or (stop is not None and (stop.cause is not None or stop.over)):
            context.cancel.set()

    @property
    def _stop(self) -> Stop | None:
        attempt = self.batch.attempts.get(self.place)
        return None if attempt is None else attempt.stop

    def listen(self) -> bool:
        """Accept stops from now on. Return False if there was one already, which ends it."""
        if (stop := self._stop) is not None:
            if stop.cause is not None:
                self.report(outcome_of_stop(self.batch.assigned, stop.cause))
                return False
            stop.listen(self.end)
        self.batch.calls[self.place] = self
        return True

    def resolve(self, result: AttemptOutcome | None, error: BaseException | None) -> None:
        if self.reported:
            return
        batch, place, self.ended = self.batch, self.place, True
        if result is SUCCESS and self._output is None and place not in batch.attempts:
            self.reported = True
            batch.calls[place] = None
            if self.cancel_flag is not None:
                self.cancel_flag.set()
            if not batch.succeeded:
                batch.on_end(batch, batch.succeeded, SUCCESS)
            batch.succeeded.append(place)
            return
        stop, output = self._stop, () if self._output is None else self._output.finish()
        if stop is not None and stop.cause is not None:
            result = outcome_of_stop(batch.assigned, stop.cause, self.blocked, output)
        else:
            if error is not None:
                result = raised(error)
            result = result or _ENDED
            if output:
                result = replace(result, output=output)
        self.report(result)

    def report(self, outcome: AttemptOutcome) -> None:
        """Report this outcome, unless one was reported."""
        if self.reported:
            return
        batch, place = self.batch, self.place
        self.reported = True
        batch.calls[place] = None
        if self.cancel_flag is not None:
            self.cancel_flag.set()
        if (stop := self._stop) is not None:
            stop.deafen()
        batch.on_end(batch, [place], outcome)

    def not_started(self, error: OSError) -> None:
        self.report(given_back(str(error.strerror)))

    def end(self, kill: bool) -> None:
        """End the call: cancel its task, or set `cancel` of its context."""
        if self.home is not None:
            self.home.cancel(self)
        elif self.cancel_flag is not None:  # in a thread
            self.cancel_flag.set()
        attempt = self.attempt
        if attempt.stop.cause in _FINAL and not self.reported:
            wait = 0.0 if kill else attempt.kill_after
            self.target.loop.call_later(wait, self._leave)

    def _leave(self) -> None:
        if not self.reported:
            log.warning(
                "handler of run %s didn't end when requested: it continues without a run",
                self.key.run,
                extra=self.key.log_fields,
            )
            self.resolve(None, None)

    def _report_progress(self, progress: sdk.Progress) -> None:
        self.attempt.report_progress(progress)

    # -- In the thread of the user's code --

    async def work(self) -> AttemptOutcome:
        """Call the function and await its result, in a separate task."""
        if self.reported:
            return _ENDED
        current.set(self)
        try:
            assigned, target = self.batch.assigned, self.target
            content = assigned.content if assigned.alike else assigned.content_of(self.place)
            if target.large or (content is not None and len(content.data) > LARGE):
                values = await beside(partial(self._values, content))
            else:
                values = self._values(content)
        except BaseException as error:  # noqa: BLE001 - a user's type may raise anything
            return self._misread(error)
        try:
            answer = await target.function(*values, AttemptContext.of(self))
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
        if self.reported:
            return _ENDED
        current.set(self)
        try:
            values = self._values(self.batch.assigned.content_of(self.place))
        except BaseException as error:  # noqa: BLE001 - as above
            return self._misread(error)
        try:
            answer = self.target.function(*values, AttemptContext.of(self))
        except BaseException as error:  # noqa: BLE001 - as above
            return self._raised(error)
        return self._returned(answer)

    def _log(self, text: str) -> None:
        self.write(True, text.encode(errors="backslashreplace"))

    def _raised(self, error: BaseException) -> AttemptOutcome:
        outcome = raised(error)
        if isinstance(error, asyncio.CancelledError) and not error.args:
            outcome = replace(outcome, error=CANCELED)
        for piece in outcome.output:
            self.write(piece.stderr, piece.data)
        return outcome

    def _misread(self, error: BaseException) -> AttemptOutcome:
        if isinstance(error, ValueError | RecursionError):
            return unfit(error)
        return self._raised(error)

    def _values(self, content: Content | None) -> Sequence[object]:
        target = self.target
        try:
            values = []
            for fit, given in (*target.given, (target.fit, content)):
                values.append(fit(None if given is None else decoded(given)))
        except PayloadMismatch:
            raise
        except (ValueError, RecursionError) as error:
            raise PayloadMismatch(
                f"the payload of the run isn't valid JSON: {error}; correct the payload"
            ) from error
        if target.check is not None:
            target.check(values[0])
        return values

    def _returned(self, answer: object) -> AttemptOutcome:
        try:
            return returned(answer, self.batch.most_result)
        except BaseException as error:  # noqa: BLE001 - a value may raise when it is looked at
            return self._raised(error)


current: Final[ContextVar[HandlerCall | None]] = current_output
"""The run of a handler, in its coroutine, tasks, callbacks, and threads with a copy of the context.
In this process handlers alone set it. Setting a second variable would take 1 µs of each run.
"""
