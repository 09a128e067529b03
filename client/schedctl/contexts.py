"""Contexts: clusters by name, in `~/.config/schedctl/config.toml`.

    current = "dev"

    [contexts.dev]
    endpoints = ["127.0.0.1:7420"]
    namespace = "default"            # the rest is optional
    tls = {ca = "…", cert = "…", key = "…"}     # ca alone, with a token
    token_file = "…"
    protected = true

The file is replaced atomically.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from schedctl.failure import UnfitEnvironment
from schedctl.files import File, to_toml, write
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS
from schedkit.protojson.problems import did_you_mean
from schedkit.records import dataclass, replace

KEYS: Final = frozenset({"endpoints", "namespace", "tls", "token_file", "protected"})


@dataclass(frozen=True, slots=True)
class ClusterContext:
    name: str
    endpoints: tuple[str, ...]
    namespace: str | None = None
    tls: TLS | None = None
    token_file: Path | None = None
    protected: bool = False


@dataclass(frozen=True, slots=True)
class Contexts:
    current: str | None = None
    known: Mapping[str, ClusterContext] = field(default_factory=dict)


def path() -> Path:
    """Return the path of the configuration file: `$XDG_CONFIG_HOME/schedctl/config.toml`."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "schedctl" / "config.toml"


def load() -> Contexts:
    """Return all contexts; none if there isn't a file. Raises Misconfigured: the file can't be read
    or isn't valid.
    """
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise Misconfigured(
            f"the configuration file {file} can't be read: {error.strerror}; check the"
            " file and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise Misconfigured(
            f"the configuration file {file} isn't valid UTF-8: save it as TOML in UTF-8"
        ) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(
            f"the configuration file {file} isn't valid TOML: {error}; correct the file"
        ) from None
    known = content.get("contexts", {})
    if not isinstance(known, dict):
        raise Misconfigured(
            f"the configuration file {file} isn't valid: write each context as a table, such"
            " as [contexts.prod]"
        )
    return Contexts(
        current=content.get("current"),
        known={name: _context(file, name, entry) for name, entry in known.items()},
    )


def current() -> ClusterContext | None:
    """Return the current context, if there is one. Raises Misconfigured: the file can't be read, or
    the current context doesn't exist.
    """
    all_of_them = load()
    return named(all_of_them.current, all_of_them) if all_of_them.current else None


def named(name: str, contexts: Contexts | None = None) -> ClusterContext:
    """Return a context by its name. Raises Misconfigured: it doesn't exist; with a suggestion."""
    contexts = contexts or load()
    if name not in contexts.known:
        hint = did_you_mean(name, contexts.known)
        raise Misconfigured(f'context "{name}" not found in {path()}' + (f"; {hint}" * bool(hint)))
    return contexts.known[name]


def save(name: str, endpoints: Sequence[str], select: bool = True, **changes: Any) -> None:
    """Write the endpoints and the given fields of a context, and keep its other fields. `select`
    makes it the current context.
    """
    contexts = load()
    before = contexts.known.get(name, ClusterContext(name, ()))
    known = {**contexts.known, name: replace(before, endpoints=tuple(endpoints), **changes)}
    _write(Contexts(name if select else contexts.current, known))


def use(name: str) -> None:
    contexts = load()
    named(name, contexts)
    _write(replace(contexts, current=name))


def delete(name: str) -> None:
    """Delete a context. If it was the current one, there is no current context afterwards. Raises
    Misconfigured: it doesn't exist.
    """
    contexts = load()
    named(name, contexts)
    known = {each: context for each, context in contexts.known.items() if each != name}
    _write(Contexts(None if contexts.current == name else contexts.current, known))


_PARTS: Final = ({"ca"}, {"ca", "cert", "key"})


def _context(file: Path, name: str, entry: Any) -> ClusterContext:
    def wrong(what: str) -> Misconfigured:
        return Misconfigured(f"{file}: {what}")

    at = f"contexts.{name}"
    if not isinstance(entry, dict):
        raise wrong(
            f"the context {at} isn't a table: write [{at}], and the keys of the context below it"
        )
    for key in entry:
        if key not in KEYS:
            raise wrong(
                f"{at}.{key} is an unknown key; {did_you_mean(key, KEYS)}".removesuffix("; ")
            )
    endpoints = entry.get("endpoints", [])
    if not isinstance(endpoints, list) or not all(isinstance(one, str) for one in endpoints):
        raise wrong(f'the endpoints of [{at}] must be a list of addresses, such as ["m1:7420"]')
    tls = entry.get("tls")
    if tls is not None and (not isinstance(tls, dict) or set(tls) not in _PARTS):
        raise wrong(f"the key tls of [{at}] must be a table with ca, cert and key, or with ca only")
    token_file = entry.get("token_file")
    return ClusterContext(
        name=name,
        endpoints=tuple(endpoints),
        namespace=entry.get("namespace"),
        tls=TLS(**{part: Path(where).expanduser() for part, where in tls.items()}) if tls else None,
        token_file=Path(token_file).expanduser() if token_file else None,
        protected=entry.get("protected") is True,
    )


def _write(contexts: Contexts) -> None:
    content: dict[str, Any] = {"current": contexts.current, "contexts": {}}
    for name, context in contexts.known.items():
        files = {part: getattr(context.tls, part, None) for part in ("ca", "cert", "key")}
        content["contexts"][name] = _given(
            endpoints=context.endpoints,
            namespace=context.namespace,
            token_file=context.token_file and str(context.token_file),
            protected=context.protected,
            tls=_given(**{part: file and str(file) for part, file in files.items()}),
        )
    text = to_toml(_given(**content))
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(File(file, text.encode()))
    except OSError as error:
        raise UnfitEnvironment(
            f"the configuration file {file} can't be written: {error.strerror}",
            "make this file writable for you, or use another folder: XDG_CONFIG_HOME=DIR",
        ) from error


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}
