"""Standard logging, as lines for people or as JSON lines for machines, on standard error.

    log.info("took %d shards", n, extra={"shards": n, "tenure": tenure})
    text  2026-01-31T09:41:07.250Z INFO  schedd.owner: took 12 shards shards=12 tenure=…
    json  {"at": "2026-01-31T09:41:07.250Z", "level": "info", "service": "schedd", "logger": …,
           "message": "took 12 shards", "shards": 12, "tenure": …}

Invariants
- Each `extra` appears under its own name. It never replaces one of the line's own keys.
- Repeated lines are limited, with a count (`log_rate_limit`).
- A record is one line: line breaks are escaped in both formats. Exception: tracebacks in text
  format.
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal

from schedkit.daemon.log_rate_limit import LimitedHandler

Format = Literal["json", "text"]

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record. All others were given as `extra`."""

MOST_LISTED: Final = 20

_FOREIGN: Final = ("alembic", "uvicorn", "grpc", "asyncio", "sqlalchemy")
"""Libraries of which only warnings and errors are logged."""


def configure(level: str, fmt: Format, name: str) -> None:
    """Set up logging for the whole process, replacing the earlier setup. May be called again.

    Args:
        level: debug, info, warning or error, in any case.
        fmt: `json` or `text`.
        name: name of the service, in each JSON line.

    Raises:
        ValueError: the level or the format is unknown.
    """
    if fmt not in ("json", "text"):
        raise ValueError(f"the log format {fmt!r} isn't valid: use json or text")
    handler = LimitedHandler(sys.stderr)
    handler.setFormatter(JsonLines(name) if fmt == "json" else TextLines())
    root = logging.getLogger()
    root.setLevel(level.upper())
    _configured.append(level)
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    for library in _FOREIGN:
        logging.getLogger(library).setLevel(max(root.level, logging.WARNING))


def level() -> str:
    """Return the level that was configured last, even if other code has changed it since."""
    return _configured[-1] if _configured else "info"


def listed(ids: Iterable[object]) -> str:
    """Return the first `MOST_LISTED` ids as one value, for a line about many."""
    return ",".join(map(str, islice(ids, MOST_LISTED)))


_configured: Final[list[str]] = []


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object. Values without a JSON type are written by `str`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_extras(record) | line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Formats records as UTC date and time, level, logger, message, extras as `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        at = _instant(record).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        extras = "".join(f" {key}={_word(value)}" for key, value in _extras(record).items())
        line = f"{at} {record.levelname:<7} {record.name}: {message}{extras}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


def _word(value: object) -> str:
    """Return a value as one word, quoted if it contains blanks or line breaks."""
    text = str(value)
    plain = text.isprintable() and " " not in text and text != ""
    return text if plain else json.dumps(text, ensure_ascii=False)
