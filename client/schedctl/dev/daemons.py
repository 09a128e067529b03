"""Members and workers as processes: configuration, environment and start."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from schedctl.dev.errors import BadOverride, DevError, NotReady
from schedctl.dev.plan import Override, apply
from schedctl.dev.records import (
    PORTS,
    ClusterFolder,
    ClusterPart,
    ClusterState,
    PartKind,
    write_private,
)
from schedctl.dev.servers import certificates
from schedctl.dev.servers.processes import DevProcess, spawn
from schedctl.files import to_toml
from schedkit.text import duration

# Configuration files of the daemons, from the cluster's record. No I/O here.

DRAIN_TIMEOUT = "10s"
"""Time for running jobs in `down`; shorter than in production, since a person waits."""
LOOPBACK: Mapping[str, Any] = {"allow": ["127.0.0.0/8", "::1", "localhost"]}
"""Jobs and webhooks of a development cluster may call its own host."""


def render(
    folder: ClusterFolder, state: ClusterState, part: ClusterPart, overrides: Sequence[Override]
) -> str:
    """Return the TOML of one daemon, with the overrides for its kind and then for its name. Raises
    BadOverride: an override doesn't fit.
    """
    if part.kind is PartKind.MEMBER:
        etcds = state.parts_of_kind(PartKind.ETCD)
        endpoints = [etcd.address("client") for etcd in etcds]
        own: dict[str, Any] = {
            "etcd": {"endpoints": endpoints, **state.etcd_user},
            "postgres": {"dsn": state.dsn},
        }
    else:
        members = state.parts_of_kind(PartKind.MEMBER)
        own = {
            "endpoints": [member.address("grpc") for member in members],
            "slots": state.slots,
            "spool": str(folder.data(part.name)),
            "drain_timeout": DRAIN_TIMEOUT,
        }
    config = {
        "name": part.name,
        **own,
        "listen": {port: part.address(port) for port in PORTS[part.kind]},
        "egress": LOOPBACK,
        "results": {"url": folder.data("results").absolute().as_uri()},
        **certificates.settings_of(folder, state, part.name),
    }
    config = apply(config, overrides, _MODULES[part.kind])
    return to_toml(apply(config, overrides, part.name))


_MODULES = {PartKind.MEMBER: "schedd", PartKind.WORKER: "workerd"}
_AFTERWARDS = {PartKind.MEMBER: 5.0, PartKind.WORKER: 30.0}
"""Seconds after the drain, in which a worker ends unfinished runs and sends its results."""

_NOT_INHERITED = ("SCHEDD_", "WORKERD_", "PG", "NOTIFY_SOCKET", "WATCHDOG_")
"""Variables that would override these files, or belong to another service."""


def all_of(state: ClusterState) -> list[ClusterPart]:
    return [*state.parts_of_kind(PartKind.MEMBER), *state.parts_of_kind(PartKind.WORKER)]


def configure(
    folder: ClusterFolder,
    state: ClusterState,
    parts: Iterable[ClusterPart],
    overrides: Sequence[Override],
) -> None:
    """Write the configuration files of these daemons. Raises BadOverride: an override doesn't fit;
    no file was written.
    """
    rendered = {part.name: render(folder, state, part, overrides) for part in parts}
    for name, text in rendered.items():
        write_private(folder.config(name), text)


def check(folder: ClusterFolder, parts: Iterable[ClusterPart], left: Callable[[], float]) -> None:
    """Run the daemons' own check of their files, before any start; `left` are seconds. Raises
    BadOverride: a daemon rejects a setting; with its output. NotReady: the check timed out.
    """
    for part in parts:
        what = f"the check of {part.name}'s settings"
        done = _run(what, [*_command(folder, part), "--check-config"], folder, left())
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            problem = (
                lines[0].removeprefix(f"{_MODULES[part.kind]}: ") if lines else "no reason given"
            )
            raise BadOverride(
                f"--set: {part.name} rejects this setting: {problem}",
                "correct or remove this --set; the settings are listed in"
                f" docs/operations/configuration-{_MODULES[part.kind]}.md",
            )


def migrate(folder: ClusterFolder, member: ClusterPart, timeout: float) -> None:
    """Migrate the schema, with this member's configuration. Raises NotReady: the migration timed
    out after `timeout` seconds. DevError: the migration failed; with its output.
    """
    command = _command(folder, member)
    command.insert(-2, "migrate")
    done = _run("schedd migrate", command, folder, timeout)
    if done.returncode != 0:
        raise DevError(
            "the database schema can't be created: schedd migrate failed",
            "read the output of schedd migrate above, and correct the cause",
            evidence=(done.stderr or done.stdout).strip(),
        )


def start(folder: ClusterFolder, part: ClusterPart) -> DevProcess:
    """Start one daemon; return before it is ready."""
    return spawn(
        _command(folder, part), log=folder.log(part.name), cwd=folder.root, env=environment()
    )


def stop_timeout(folder: ClusterFolder, parts: Iterable[ClusterPart]) -> float:
    """Return the seconds that these daemons may need to stop after SIGTERM."""
    found = [_drain_seconds(folder.config(part.name)) + _AFTERWARDS[part.kind] for part in parts]
    return max(found, default=0.0)


def environment() -> dict[str, str]:
    """Return the environment of daemons: without their own settings, and with absolute paths.
    PYTHONPATH is passed, so that workers find handlers; loopback never uses a proxy. The log level
    of gRPC isn't passed: schedctl silences it only for itself.
    """
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)
    }
    if inherited.get("GRPC_VERBOSITY") == "NONE":
        del inherited["GRPC_VERBOSITY"]
    if paths := inherited.get("PYTHONPATH"):
        inherited["PYTHONPATH"] = os.pathsep.join(
            os.fspath(Path(path).absolute()) for path in paths.split(os.pathsep)
        )
    for key in ("no_proxy", "NO_PROXY"):
        listed = [inherited[key]] if inherited.get(key) else []
        inherited[key] = ",".join([*listed, "127.0.0.1", "localhost"])
    return inherited


def _run(
    what: str, command: Sequence[str], folder: ClusterFolder, timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder.root,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise NotReady(f"{what} timed out: it takes longer than the remaining time") from late


def _command(folder: ClusterFolder, part: ClusterPart) -> list[str]:
    # -P: a file in the working directory must not shadow a module.
    module = _MODULES[part.kind]
    return [sys.executable, "-P", "-m", module, "--config", os.fspath(folder.config(part.name))]


def _drain_seconds(config: Path) -> float:
    """Return `drain_timeout` of a daemon's file; the default if the file is broken."""
    try:
        written = tomllib.loads(config.read_text(encoding="utf-8")).get("drain_timeout")
        return duration.parse(str(written or DRAIN_TIMEOUT)).total_seconds()
    except (OSError, ValueError):  # a broken TOML file is a ValueError too
        return duration.parse(DRAIN_TIMEOUT).total_seconds()
