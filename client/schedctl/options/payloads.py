"""Flags whose value is JSON, or bytes of a file."""

from __future__ import annotations

from pathlib import Path

from schedctl.failure import CommandFailure, standard_input
from schedkit.protojson import standard
from schedproto.v1 import common_pb2


def read_payload(given: str, flag: str = "--payload") -> common_pb2.Payload:
    """`-` is standard input, `@file` a file (both may be any bytes), else JSON itself.

    What is in a file that is called *.json has to be JSON.
    """
    if given != "-" and not given.startswith("@"):
        return _inline(given, flag)
    try:
        content = standard_input() if given == "-" else Path(given[1:]).read_bytes()
    except OSError as error:
        raise CommandFailure(
            f"{flag} can't be read: {error}", reason="NO_FILE", remedy="check the file's name"
        ) from error
    try:
        return _json_payload(content.decode(), flag)
    except ValueError as error:
        if given.endswith(".json"):
            remedy = "mend it, or give the file another name to send its bytes as they are"
            raise _wrong(f"{given[1:]} is no JSON: {error}", remedy) from None
        return common_pb2.Payload(raw=content)


def _inline(text: str, flag: str) -> common_pb2.Payload:
    try:
        return _json_payload(text, flag)
    except ValueError as error:
        remedy = """write '"text"' for a text, @FILE for a file, - for standard input"""
        raise _wrong(f"{flag} is no JSON: {error}", remedy) from None


def _json_payload(text: str, flag: str) -> common_pb2.Payload:
    try:
        standard.loads(text)  # checked, and kept to the byte
    except standard.TooDeep as deep:
        remedy = "put what is deeper elsewhere, and give its address"
        raise _wrong(f"{flag} {deep}", remedy) from None
    return common_pb2.Payload(json=text)


def _wrong(what: str, remedy: str) -> CommandFailure:
    return CommandFailure(what, reason="WRONG_FLAG", remedy=remedy)
