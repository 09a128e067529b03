"""Options whose value is JSON or the bytes of a file."""

from pathlib import Path

from schedctl.failure import CommandFailure, standard_input
from schedkit.protojson import standard
from schedproto.v1 import common_pb2


def read_payload(given: str, flag: str = "--payload") -> common_pb2.Payload:
    """Read a payload: `-` is standard input, `@FILE` a file, anything else JSON itself.

    Standard input and files may hold any bytes; a file named *.json must hold JSON.
    """
    if given != "-" and not given.startswith("@"):
        return _inline(given, flag)
    try:
        content = standard_input() if given == "-" else Path(given[1:]).read_bytes()
    except OSError as error:
        raise CommandFailure(
            f"{flag} {given} can't be read: {error}",
            reason="NO_FILE",
            remedy="check the file's name and permissions",
        ) from error
    try:
        return _json_payload(content.decode(), flag)
    except ValueError as error:
        if given.endswith(".json"):
            remedy = "correct the JSON; or, to send the bytes unchanged, rename the file"
            raise _wrong(f"{given[1:]} isn't valid JSON: {error}", remedy) from None
        return common_pb2.Payload(raw=content)


def _inline(text: str, flag: str) -> common_pb2.Payload:
    try:
        return _json_payload(text, flag)
    except ValueError as error:
        remedy = """write '"text"' for a string, @FILE for a file, - for standard input"""
        raise _wrong(f"{flag} isn't valid JSON: {error}", remedy) from None


def _json_payload(text: str, flag: str) -> common_pb2.Payload:
    try:
        standard.loads(text)  # only checked: the text is kept byte for byte
    except standard.TooDeep as deep:
        remedy = "use fewer nested levels; or store the data elsewhere, and pass its address"
        raise _wrong(f"{flag} {deep}", remedy) from None
    return common_pb2.Payload(json=text)


def _wrong(what: str, remedy: str) -> CommandFailure:
    return CommandFailure(what, reason="WRONG_FLAG", remedy=remedy)
