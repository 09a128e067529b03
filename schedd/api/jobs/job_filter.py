"""The filter of a list of jobs: words, all of which must match.

    nightly            the name contains this
    name:etl-*         the name, with `*` for any characters
    label.team:data    a label and its value, `*` for any value
    paused:true        pool:reports   pool:none   action:shell

    text ──read──▶ Filter ──database──▶ rows ──holds──▶ jobs

Values with spaces are in double quotes. An unknown field is rejected with a suggestion. Labels and
actions are in the serialized definition: the database searches for their bytes, and `holds` removes
false matches.
"""

import shlex
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from schedd.api.errors import FieldViolation, InvalidArgumentError
from schedd.core.runs.records import ALL_JOBS, JobFilter
from schedkit.protojson.problems import did_you_mean
from schedkit.records import dataclass, replace
from schedproto.v1 import job_pb2

LONGEST: Final = 1_000
MOST_WORDS: Final = 20

ACTIONS: Final = tuple(one.name for one in job_pb2.Job.DESCRIPTOR.oneofs_by_name["action"].fields)
LABEL: Final = "label."
ANY: Final = "*"
NO_POOL: Final = "none"
PAUSED: Final = {"true": True, "yes": True, "false": False, "no": False}
_TWICE: Final = "the field is given twice: give each field once, because a job must match all words"


class _Wrong(ValueError):
    """A word of a filter is invalid."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. `stored`: the part that the database checks."""

    stored: JobFilter = ALL_JOBS
    labels: dict[str, str] = field(default_factory=dict)
    action: str = ""

    def holds(self, job: job_pb2.Job) -> bool:
        """Return whether a job that the database found matches the labels and action."""
        labels = all(
            key in job.labels and value in (ANY, job.labels[key])
            for key, value in self.labels.items()
        )
        return labels and self.action in ("", job.WhichOneof("action"))


def parse_filter(text: str) -> Filter:
    """Parse a filter.

    Raises:
        InvalidArgumentError: with each invalid word.
    """
    wanted, wrong = Filter(), []
    seen: set[str] = set()
    for word in _words(text):
        name, colon, value = word.partition(":")
        try:
            if not colon:
                wanted = _stored(wanted, words=(*wanted.stored.words, word))
                continue
            if not value:
                raise _Wrong(
                    "the filter gives this field no value: write the value after the colon"
                )
            if name in seen:
                raise _Wrong(_TWICE)
            seen.add(name)
            wanted = _field(name)(wanted, value)
        except _Wrong as problem:
            wrong.append(f"{name}: {problem}")
    if wrong:
        raise _refusal(wrong)
    return wanted


def _words(text: str) -> list[str]:
    if len(text) > LONGEST:
        raise _refusal([f"the filter has more than {LONGEST:,} characters"])
    lexer = shlex.shlex(text, posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters, lexer.quotes, lexer.escape = True, "", '"', ""
    try:
        words = [*lexer]
    except ValueError:
        raise _refusal(["the filter has an unclosed double quote"]) from None
    if len(words) > MOST_WORDS:
        raise _refusal([f"the filter has more than {MOST_WORDS} words"])
    return words


def _field(name: str) -> Callable[[Filter, str], Filter]:
    if name.startswith(LABEL) and name != LABEL:
        return lambda wanted, value: _label(wanted, name.removeprefix(LABEL), value)
    if name in FIELDS:
        return FIELDS[name]
    near = did_you_mean(name, [*FIELDS, f"{LABEL}KEY"])
    known = ", ".join([*FIELDS, f"{LABEL}KEY"])
    raise _Wrong(f"a filter can't contain this field; {near or f'use one of {known}'}")


def _paused(wanted: Filter, value: str) -> Filter:
    if value.lower() not in PAUSED:
        raise _Wrong(f"the value {value!r} isn't valid: give true or false")
    return _stored(wanted, paused=PAUSED[value.lower()])


def _action(wanted: Filter, value: str) -> Filter:
    action = value.lower()
    if action not in ACTIONS:
        near = did_you_mean(action, ACTIONS)
        raise _Wrong(f"{value!r} isn't a valid action; {near or 'give ' + ', '.join(ACTIONS)}")
    number = job_pb2.Job.DESCRIPTOR.fields_by_name[action].number
    return replace(_contains(wanted, _tag(number)), action=action)


def _label(wanted: Filter, key: str, value: str) -> Filter:
    if key in wanted.labels:
        raise _Wrong(_TWICE)
    written = _text(1, key) + (_tag(2) if value == ANY else _text(2, value))
    return replace(_contains(wanted, written), labels={**wanted.labels, key: value})


FIELDS: Final[dict[str, Callable[[Filter, str], Filter]]] = {
    "name": lambda wanted, value: _stored(wanted, name=value),
    "paused": _paused,
    "pool": lambda wanted, value: _stored(wanted, pool="" if value == NO_POOL else value),
    "action": _action,
}


def _stored(wanted: Filter, **changes: Any) -> Filter:
    return replace(wanted, stored=replace(wanted.stored, **changes))


def _contains(wanted: Filter, written: bytes) -> Filter:
    return _stored(wanted, bytes_=(*wanted.stored.bytes_, written))


def _tag(number: int) -> bytes:
    """Return the tag of a length-delimited field."""
    return _varint(number << 3 | 2)


def _text(number: int, text: str) -> bytes:
    content = text.encode()
    return _tag(number) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def _refusal(wrong: list[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"filter: {'; '.join(wrong)}",
        reason="BAD_FILTER",
        remedy="give words like name:etl-* label.team:data paused:true pool:reports",
        violations=[FieldViolation("filter", one) for one in wrong],
    )
