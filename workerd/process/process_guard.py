"""Protect the settings of the process that the worker needs from users' modules.

Modules of handlers are imported on the main thread and may change the process: signals, the working
directory, the recursion limit, loggers. Later their code runs in other threads, where Python
doesn't allow signal handlers.

Invariants
- The worker's own log has its own loggers, handler, stream and record factory: no configuration of
  `logging` reaches them.
- A change that is harmless to the worker stays: `logging` of users, environment, locale, policies.
"""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from workerd.logs.run_output import own_stream

log = logging.getLogger(__name__)

_OURS: Final = ("workerd", "schedkit", "schedproto")
_LIBRARIES: Final = "grpc|google|aiohttp|uvicorn|starlette|h11|asyncio|prometheus_client|msgspec"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_Record: Final = logging.LogRecord
LEAST_RECURSION: Final = 1000
LONGEST_SWITCH: Final = 0.005
"""Seconds; Python's default. With longer ones a busy handler would starve the worker's loop."""


class _OwnLogger(logging.Logger):
    sink: logging.Handler
    least: int

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the library's name
        return level >= self.least

    def getEffectiveLevel(self) -> int:  # noqa: N802 - as above
        return self.least

    def makeRecord(self, *given: Any, **named: Any) -> logging.LogRecord:  # noqa: N802 - as above
        name, level, fn, lno, msg, args, exc_info, *rest = given
        extra = named.get("extra", rest[1] if len(rest) > 1 else None)
        record = _Record(name, level, fn, lno, msg, args, exc_info, rest[0] if rest else None)
        vars(record).update(extra or {})
        return record

    def handle(self, record: logging.LogRecord) -> None:
        self.sink.handle(record)


def protect_log(level: str, formatter: logging.Formatter | None) -> None:
    """Make the worker's own loggers independent of `logging`'s configuration, for good."""
    sink = logging.StreamHandler(own_stream(2))
    sink.setFormatter(formatter)
    _OwnLogger.sink, _OwnLogger.least = sink, logging.getLevelName(level.upper())
    names = [*logging.root.manager.loggerDict]
    for name in {*_OURS, *(each for each in names if each.partition(".")[0] in _OURS)}:
        logger = logging.getLogger(name)
        logger.__class__ = _OwnLogger
    for name in _OURS:  # modules that are imported later have plain loggers below these
        logging.getLogger(name).addHandler(sink)
        logging.getLogger(name).propagate = False


@contextmanager
def importing() -> Iterator[None]:
    """Import users' modules in this block; restore the settings of the process after it."""
    handlers = {each: signal.getsignal(each) for each in _SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    folder, umask = os.open(".", os.O_RDONLY | os.O_DIRECTORY), os.umask(0o077)
    os.umask(umask)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
                log.warning("handler module changed a signal; restored", extra={"signal": number})
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        with suppress(OSError):
            os.fchdir(folder)
        os.close(folder)
        os.umask(umask)
        warnings.filterwarnings("default", module=rf"({'|'.join(_OURS)}|{_LIBRARIES})(\..*)?$")
        restore()


def restore() -> None:
    """Restore limits that the worker needs. Cheap: called repeatedly."""
    if threading.excepthook is None:  # without these two no thread can be started
        threading.excepthook = threading.__excepthook__
    if sys.excepthook is None:
        sys.excepthook = sys.__excepthook__
    if sys.getrecursionlimit() < LEAST_RECURSION:
        sys.setrecursionlimit(LEAST_RECURSION)
    if sys.getswitchinterval() > LONGEST_SWITCH:
        sys.setswitchinterval(LONGEST_SWITCH)
