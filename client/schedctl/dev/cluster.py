"""Start and stop the cluster of one folder.

`up` starts missing parts in the order of their dependencies: etcd and PostgreSQL, the schema,
members, workers. `down` stops them in the opposite order. Each step is recorded at once, so that
the next command knows every process even if this one is killed.
"""

import fcntl
import json
import re
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from schedctl.dev import daemons, plan
from schedctl.dev.errors import DevError, NotReady, NotUp, ProcessEnded
from schedctl.dev.plan import parse
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers import binaries, certificates, etcd, postgres
from schedctl.dev.servers.etcd import fetch
from schedctl.dev.servers.processes import POLL, end, tail

# Readiness of the cluster, read from its daemons over HTTP.
#
# The cluster is ready when every daemon is (`/readyz`), every member reports a leader and an owner
# of every shard (`/api/v1/cluster`), and every worker is attached to every member (`/metrics`). A
# drained worker is ready. Leases of workers don't count: a worker that was just killed still has
# one.

DRAINING: Final = "draining"
"""The answer of a drained worker."""


def why_daemons_not_ready(
    members: Mapping[str, str], workers: Mapping[str, str], trust: ssl.SSLContext | None = None
) -> str | None:
    """Return why these daemons (name → `host:port` of HTTP) aren't ready; None if they are."""
    for name, http in (*members.items(), *workers.items()):
        url = f"http://{http}" if name in workers else _url(http, trust)
        answer = fetch(f"{url}/readyz", trust=trust)
        if answer is None:
            return f"{name} doesn't answer at {http}"
        if answer.status != 200 and not (name in workers and _line(answer.body) == DRAINING):
            return f"{name} isn't ready: {_line(answer.body)}"
    for name, http in members.items():
        if (view := cluster_view(http, trust)) is None:
            return f"{name} doesn't report the state of the cluster"
        if not view.get("leader"):
            return f"there is no leader, as {name} reports"
        owned, shards = view.get("owned") or 0, view.get("shards") or 0
        if not shards or owned != shards:
            return f"{owned} of {shards} shards have an owner, as {name} reports"
    for name, http in workers.items():
        answer = fetch(f"http://{http}/metrics")
        metrics = answer.body.decode() if answer is not None else ""
        found = re.search(r"^workerd_members_attached (\d+)", metrics, re.MULTILINE)
        if (attached := int(found[1]) if found else 0) < len(members):
            return f"{name} is attached to {attached} of {len(members)} members"
    return None


def cluster_view(http: str, trust: ssl.SSLContext | None = None) -> Mapping[str, Any] | None:
    """Return `GET /api/v1/cluster` of one member; None if it fails."""
    answer = fetch(f"{_url(http, trust)}/api/v1/cluster", trust=trust)
    if answer is None or answer.status != 200:
        return None
    view = json.loads(answer.body)
    return view if isinstance(view, Mapping) else None


def _url(http: str, trust: ssl.SSLContext | None) -> str:
    return f"http://{http}" if trust is None else f"https://{http}"


def _line(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200] or "no reason given"


Say = Callable[[str], None]

_OURS = re.compile(
    r"(etcd|postgres|results|tls|m\d+|w\d+)(\.log|\.toml|\.new)?|cluster\.json|state\.json|lock"
)
"""Names that `reset` removes from a folder."""


def up(
    folder: ClusterFolder, requested: plan.Requested, *, timeout: float, say: Say
) -> ClusterState:
    """Start missing parts and wait until the cluster is ready. Raises NotReady: a part ended, or
    `timeout` seconds passed. Running parts are left running. DevError: a program is missing, a port
    is taken, or a setting isn't valid.
    """
    deadline = time.monotonic() + timeout
    for text in requested.overrides:
        parse(text)
    found = set(folder.root.iterdir()) if folder.root.is_dir() else None
    folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder):
        before = folder.load()
        for data in (folder.data("etcd"), folder.data("postgres")):
            if before is None and data.exists():
                raise DevError(
                    f"the folder {data} exists, but schedctl dev didn't create it",
                    "name another folder: --dir DIR",
                )
        state = plan.complete(before, requested)
        old = [part.name for part in daemons.all_of(state) if part.alive()]
        if (requested.overrides or requested.slots) and old:
            say(f"new settings don't apply to running processes: {', '.join(old)}")
        try:
            return _start(folder, state, deadline, say)
        except DevError as error:
            if isinstance(error, NotReady):
                error.out_of_time(timeout)
            # Settings that prevent a start aren't stored: they would prevent every later one, too.
            if (reached := folder.load()) is not None:
                if requested.overrides or requested.slots:
                    say("the settings of this command weren't stored: give them again")
                kept = before or ClusterState()
                folder.save(replace(reached, overrides=kept.overrides, slots=kept.slots))
            elif before is None:
                _unmake(folder, found)
            raise


def down(folder: ClusterFolder, *, say: Say) -> bool:
    """Stop every process and keep the data. Return False if no process ran."""
    if folder.load() is None:
        return False
    with locked(folder):
        state = remembered(folder)
        ran = any(True for _ in state.living())
        for kind in (PartKind.WORKER, PartKind.MEMBER):
            if parts := [part for part in state.parts_of_kind(kind) if part.alive()]:
                say(f"stopping {', '.join(part.name for part in parts)}")
                timeout = daemons.stop_timeout(folder, parts)
                end([p.process for p in parts if p.process], (signal.SIGTERM, timeout))
        for part in state.parts_of_kind(PartKind.POSTGRES):
            if part.process:
                say("stopping PostgreSQL")
            postgres.stop(part.process, folder.data(part.name))
        if servers := [part.process for part in state.parts_of_kind(PartKind.ETCD) if part.process]:
            say("stopping etcd")
            end(servers, (signal.SIGTERM, 10.0))
        stopped = {part.name: replace(part, process=None) for part in state.parts.values()}
        folder.save(replace(state, parts=stopped))
        return ran


def reset(folder: ClusterFolder, *, say: Say) -> None:
    """Stop every process; delete data, logs, configuration and records, and no other files."""
    if folder.load() is None:
        return
    down(folder, say=say)
    with locked(folder):
        for path in list(folder.root.iterdir()):
            if not _OURS.fullmatch(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    if not any(folder.root.iterdir()):
        folder.root.rmdir()


def remembered(folder: ClusterFolder) -> ClusterState:
    """Return the recorded state of the folder's cluster. Raises NotUp: there is none."""
    if (state := folder.load()) is None:
        raise NotUp(f"no cluster found in {folder.root}", "create one: schedctl dev up")
    return state


def running(folder: ClusterFolder, kind: PartKind, name: str) -> ClusterPart:
    """Return a running part by its name. Raises NotUp: the part doesn't exist, or isn't running;
    names those that exist.
    """
    parts = {part.name: part for part in remembered(folder).parts_of_kind(kind)}
    if name not in parts:
        raise NotUp(f"{kind} {name!r} not found", f"known {kind}s: {', '.join(parts) or 'none'}")
    if not parts[name].alive():
        raise NotUp(f"{kind} {name} isn't running", "start it: schedctl dev up")
    return parts[name]


def leader(folder: ClusterFolder) -> ClusterPart:
    """Return the member that is the leader. Raises NotUp: no member reports a running leader."""
    state = remembered(folder)
    trust = certificates.trust(folder, state)
    for member in state.parts_of_kind(PartKind.MEMBER):
        view = cluster_view(member.address("http"), trust) if member.alive() else None
        if view is not None and (name := view.get("leader")):
            return running(folder, PartKind.MEMBER, str(name))
    raise NotUp(
        "the leader is unknown: no member reports a leader",
        "check the members: schedctl cluster status",
    )


@contextmanager
def locked(folder: ClusterFolder) -> Iterator[None]:
    with folder.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unmake(folder: ClusterFolder, found: set[Path] | None) -> None:
    """Remove the files that a failed `up` wrote; `found` were there before (None: no folder). No
    process was started yet: there are only configuration files, certificates and the lock.
    """
    for path in set(folder.root.iterdir()) - (found or set()):
        if _OURS.fullmatch(path.name) and path.is_file():
            path.unlink()
    if found is None or folder.tls not in found:
        shutil.rmtree(folder.tls, ignore_errors=True)
    if found is None and not any(folder.root.iterdir()):
        folder.root.rmdir()


def _start(folder: ClusterFolder, state: ClusterState, deadline: float, say: Say) -> ClusterState:
    missing = [part for part in daemons.all_of(state) if not part.alive()]
    overrides = plan.overrides_of(state)
    if state.tls and (missing or not folder.tls.exists()):  # also for a cluster without daemons
        certificates.issue(folder, missing)
    daemons.configure(folder, state, missing, overrides)
    daemons.check(folder, plan.overridden(missing, overrides), lambda: _remaining_seconds(deadline))
    _close_to_others(folder, state)
    folder.save(state)
    state = _start_stores(folder, state, deadline, say)
    if any(part.kind is PartKind.MEMBER for part in missing):
        say("migrating the schema")
        daemons.migrate(
            folder, state.parts_of_kind(PartKind.MEMBER)[0], _remaining_seconds(deadline)
        )
    for part in missing:
        say(f"starting {part.name}")
        state = state.with_part(replace(part, process=daemons.start(folder, part)))
        folder.save(state)
    _wait_ready(folder, state, deadline)
    return state


def _close_to_others(folder: ClusterFolder, state: ClusterState) -> None:
    """Deny other users of the host access to the cluster's files: folders 0700, files 0600. The
    mode of the folder itself isn't changed if it holds other files.
    """
    for part in state.parts_of_kind(PartKind.WORKER):
        folder.data(part.name).mkdir(exist_ok=True)
    folder.data("results").mkdir(exist_ok=True)
    for part in state.parts.values():
        folder.log(part.name).touch()
    found = [path for path in folder.root.iterdir() if not path.is_symlink()]
    ours = [path for path in found if _OURS.fullmatch(path.name)]
    if ours == found:
        folder.root.chmod(0o700)
    for path in ours:
        path.chmod(0o700 if path.is_dir() else 0o600)


def _start_stores(
    folder: ClusterFolder, state: ClusterState, deadline: float, say: Say
) -> ClusterState:
    """Start etcd and PostgreSQL unless they run, both at once, then wait for both."""
    for part in state.parts_of_kind(PartKind.ETCD):
        if part.alive():
            continue
        say("starting etcd")
        process = etcd.start(
            binaries.find_etcd(),
            folder.data(part.name),
            client=part.ports["client"],
            peer=part.ports["peer"],
            log=folder.log(part.name),
            settings=plan.settings_of(state, PartKind.ETCD),
        )
        state = state.with_part(replace(part, process=process))
        folder.save(state)
    for part in state.parts_of_kind(PartKind.POSTGRES):
        if part.alive():
            continue
        say("starting PostgreSQL")
        found, data = binaries.find_postgres(), folder.data(part.name)
        postgres.initialise(found, data)
        postgres.require_password(found, data, state.password)
        settings = plan.settings_of(state, PartKind.POSTGRES)
        process = postgres.start(found, data, part.ports["sql"], folder.log(part.name), settings)
        state = state.with_part(replace(part, process=process))
        folder.save(state)
    for part in state.parts_of_kind(PartKind.ETCD):
        assert part.process is not None
        log = folder.log(part.name)
        etcd.wait_ready(part.process, part.ports["client"], log, _remaining_seconds(deadline))
        etcd.require_password(part.ports["client"], state.password)
    for part in state.parts_of_kind(PartKind.POSTGRES):
        assert part.process is not None
        log = folder.log(part.name)
        port = part.ports["sql"]
        postgres.wait_ready(part.process, port, log, _remaining_seconds(deadline), state.password)
        postgres.prepare(port, password=state.password)
    return state


def _wait_ready(folder: ClusterFolder, state: ClusterState, deadline: float) -> None:
    parts, trust = daemons.all_of(state), certificates.trust(folder, state)
    members, workers = (
        {part.name: part.address("http") for part in state.parts_of_kind(kind)}
        for kind in (PartKind.MEMBER, PartKind.WORKER)
    )
    while True:
        if ended := [part for part in parts if not part.alive()]:
            raise ProcessEnded(", ".join(part.name for part in ended), folder.log(ended[0].name))
        if not parts or (lack := why_daemons_not_ready(members, workers, trust)) is None:
            return
        if time.monotonic() >= deadline:
            tails = [f"{part.name}.log:\n{tail(folder.log(part.name), 8)}" for part in parts]
            raise NotReady(
                f"the cluster isn't ready: {lack}; the last lines of each log are above",
                evidence="\n".join(tails),
            )
        time.sleep(5 * POLL)


def _remaining_seconds(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
