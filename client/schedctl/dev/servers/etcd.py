"""Run an etcd server for `schedctl dev`: start it, wait until it is ready, require a password.

The server listens for peers on a Unix socket in its data folder, which is closed to other users.
etcd has no password for peers, and a single server has no peers. SIGTERM stops all its processes.
"""

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from schedctl.dev.errors import DevError, NotReady, ProcessEnded
from schedctl.dev.servers.processes import DevProcess, address, spawn, tail, wait_for
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes


def fetch(
    url: str,
    timeout: float = 2.0,
    trust: ssl.SSLContext | None = None,
    *,
    body: Mapping[str, Any] | None = None,
) -> HttpAnswer | None:
    """GET `url`, or POST `body` to it as JSON. Return None without an answer within `timeout`
    seconds. `trust` is for https.
    """
    parts = urlsplit(url)
    method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
    session = (
        http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=trust)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=timeout)
    )
    try:
        session.request(method, parts.path or "/", content, {"Accept": "application/json"})
        response = session.getresponse()
        return HttpAnswer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        session.close()


ROOT: Final = "root"
USER: Final = "schedd"
"""The daemons' user: access to all keys, but not to users."""
_ALL_KEYS: Final = base64.b64encode(b"\0").decode()


def start(
    program: Path,
    data: Path,
    *,
    client: int,
    peer: int,
    log: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> DevProcess:
    """Start a single server in `data`, which is created if missing; return before it answers.
    `settings` are further flags, without their dashes.
    """
    peers = f"http://{address(peer)}"
    clients = f"http://{address(client)}"
    data.mkdir(mode=0o700, exist_ok=True)
    return spawn(
        [
            os.fspath(program),
            *("--name", "dev"),
            *("--data-dir", os.fspath(data)),
            *("--listen-client-urls", clients),
            *("--advertise-client-urls", clients),
            *("--listen-peer-urls", "unix://peers:0"),  # the file `peers:0` in the data folder
            *("--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"dev={peers}"),
            *("--auto-compaction-mode", "periodic"),
            *("--auto-compaction-retention", "1h"),
            *("--log-level", "warn"),
            *("--bcrypt-cost", "4"),  # the passwords are random and long
            *(f"--{name}={value}" for name, value in settings.items()),
        ],
        log=log,
        cwd=data,
        # etcd reads every ETCD_… variable as a flag.
        env={key: value for key, value in os.environ.items() if not key.startswith("ETCD_")},
    )


def wait_ready(server: DevProcess, client: int, log: Path, timeout: float) -> None:
    """Wait until it is healthy. Raises ProcessEnded: it ended. NotReady: `timeout` seconds passed.
    Both have the log's tail.
    """
    if wait_for(lambda: _healthy(client) or not server.alive(), timeout) and server.alive():
        return
    if not server.alive():
        raise ProcessEnded("etcd", log)
    raise NotReady("etcd didn't become ready", f"read the log of etcd: {log}", evidence=tail(log))


def require_password(client: int, password: str) -> None:
    """Enable authentication with the users `root` and `schedd`, if it isn't enabled yet. Raises
    DevError: etcd rejected a call, or its users have another password.
    """
    if not _accepts(client, ROOT, password):
        for user in (ROOT, USER):
            _add(client, "user/add", {"name": user, "password": password})
            _add(client, "role/add", {"name": user})
            _add(client, "user/grant", {"user": user, "role": user})
        everything = {"permType": "READWRITE", "key": _ALL_KEYS, "range_end": _ALL_KEYS}
        _add(client, "role/grant", {"name": USER, "perm": everything})
        _add(client, "enable", {})
    for user in (ROOT, USER):
        if not _accepts(client, user, password):
            raise DevError(
                f"etcd at {address(client)} rejects the password of user {user!r}",
                "restore the password in cluster.json; or delete the cluster and its data with"
                " schedctl dev reset, and create a new one with schedctl dev up",
            )


def _accepts(client: int, user: str, password: str) -> bool:
    answer = _call(client, "authenticate", {"name": user, "password": password})
    return answer.status == 200


def _add(client: int, what: str, body: Mapping[str, Any]) -> None:
    answer = _call(client, what, body)
    if answer.status != 200 and b"already exists" not in answer.body:
        raise DevError(
            f"etcd at {address(client)} rejected the call auth/{what}, which sets up its users",
            "read etcd's answer above; to create a new cluster: schedctl dev reset",
            evidence=answer.body.decode(errors="replace"),
        )


def _call(client: int, what: str, body: Mapping[str, Any]) -> HttpAnswer:
    answer = fetch(f"http://{address(client)}/v3/auth/{what}", timeout=5.0, body=body)
    if answer is None:
        raise NotReady(
            f"the call auth/{what} to etcd at {address(client)} timed out after 5 s",
            "check the load of this host, then run the command again",
        )
    return answer


def _healthy(client: int) -> bool:
    answer = fetch(f"http://{address(client)}/health")
    return answer is not None and answer.status == 200
