"""Secrets in files on a daemon's host, never in definitions: variables and signing keys.

    env_from       NAME=value, one per line. Blank lines and lines that begin with # are ignored.
                   A pair of quotes around a value, of either kind, is removed.
    signing_key    whsec_…, one per line, as Standard Webhooks writes keys. The first signs. Others
                   sign, too, while a receiver changes from one key to the next.

Invariants
- Only files below a directory that the worker's own configuration names are read, also through
  links. So an author of jobs can't read other files of the host.
- No message contains a value, or a line that can't be parsed.
"""

import base64
import binascii
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

LONGEST: Final = 64 * 1024
"""Bytes of a file."""
KEY: Final = "whsec_"
_KEY_BYTES: Final = range(24, 65)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_QUOTES: Final = "\"'"
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Opening a pipe without a writer would block forever."""


def variables(names: Iterable[str], allowed: Sequence[Path]) -> Mapping[str, str]:
    """Return the variables in these files. The last of duplicate names counts. Raises ValueError: a
    file isn't allowed, is too long, or contains an invalid line. OSError: a file can't be read.
    """
    found: dict[str, str] = {}
    for name in names:
        for where, said in _lines("env_from", name, allowed):
            key, equals, value = (part.strip() for part in said.partition("="))
            if not equals or not _NAME.fullmatch(key) or "\0" in value:
                raise ValueError(f"{where}: the line isn't valid: write NAME=value")
            if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
                value = value[1:-1]
            found[key] = value
    return found


def keys(name: str, allowed: Sequence[Path]) -> Sequence[bytes]:
    """Return the keys in this file, at least one. Raises as `variables`."""
    found = [_key(where, said) for where, said in _lines("signing_key", name, allowed)]
    if not found:
        raise ValueError(
            f"signing_key: file {name} contains no signing key: write one {KEY}… on each line"
        )
    return found


def _key(where: str, said: str) -> bytes:
    try:
        text = said.removeprefix(KEY)
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)  # padding is optional
    except binascii.Error:
        key = b""
    if not said.startswith(KEY) or len(key) not in _KEY_BYTES:
        least, most = _KEY_BYTES[0], _KEY_BYTES[-1]
        raise ValueError(
            f"{where}: the signing key isn't valid: write {KEY} and then {least} to {most} bytes in"
            " base64"
        )
    return key


def _lines(field: str, name: str, allowed: Sequence[Path]) -> Iterable[tuple[str, str]]:
    """Yield the nonempty lines, each with its place."""
    text = _read(field, name, allowed)
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if said and not said.startswith("#"):
            yield f"{field}: {name}:{number}", said


def _read(field: str, name: str, allowed: Sequence[Path]) -> str:
    """Read a file. Any path outside the allowed directories gives the same error."""
    if not allowed:
        raise ValueError(
            f"{field}: file {name} can't be read: the worker's setting `secrets` names no"
            " folder; add the file's folder to `secrets` in workerd.toml"
        )
    folders = [os.path.realpath(folder) for folder in allowed]
    try:
        path = os.path.realpath(name)
    except RecursionError:  # a loop of links; the kernel follows 40
        raise ValueError(
            f"{field}: file {name} can't be read: its symbolic links form a loop; correct the links"
        ) from None
    if not _below(path, folders):
        raise _outside(field, name, allowed)
    fd = os.open(path, _OPEN)
    try:
        # The name may refer to another file since it was looked up.
        if not _below(str(Path(f"/proc/self/fd/{fd}").readlink()), folders):
            raise _outside(field, name, allowed)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(
                f"{field}: file {name} can't be read: it isn't a regular file; name a file"
            )
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(LONGEST + 1)
    finally:
        os.close(fd)
    if len(data) > LONGEST:
        raise ValueError(
            f"{field}: file {name} can't be read: it is larger than {LONGEST // 1024} KiB;"
            " shorten or split the file"
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{field}: file {name} can't be read: it isn't text in UTF-8; save it in UTF-8"
        ) from None


def _outside(field: str, name: str, allowed: Sequence[Path]) -> ValueError:
    folders = " or ".join(map(str, allowed))
    return ValueError(
        f"{field}: file {name} isn't in an allowed folder: move the file below {folders}, or add"
        " the file's folder to `secrets` in workerd.toml"
    )


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(os.path.commonpath([path, folder]) == folder for folder in folders)


# Sign requests by Standard Webhooks, so that a receiver can verify sender and content.
#
#     webhook-id          the run id: equal for all attempts, so a receiver recognizes repetitions
#     webhook-timestamp   seconds since 1970, when this request was sent
#     webhook-signature   v1,base64(HMAC-SHA256(key, id.timestamp.body)), one for each key
#
# Source: the specification of Standard Webhooks, version 1.


def signature(keys: Sequence[bytes], identity: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers. `at`: seconds since 1970."""
    content = b"%s.%d.%s" % (identity.encode(), at, body)
    signed = (base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys)
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signed),
    }
