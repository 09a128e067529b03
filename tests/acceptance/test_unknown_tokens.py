"""Many concurrent calls with random tokens: callers with known tokens get answers in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster import DevCluster, dev_cluster
from support.s3 import free_port
from support.token_flood import METHOD, random_token

CONCURRENT = 1_600
SECONDS = float(os.environ.get("TOKEN_FLOOD_SECONDS", "12"))
"""From the start of the flood on; the known token is read from the database every 5 s."""
MOST_CONCURRENT = 8_000
EVERY = 0.05
"""Seconds between two calls of the known caller."""
WITHIN = 1.0
"""Seconds: the 99th percentile of the calls of a known caller."""
NEWCOMER_WITHIN = 5.0
"""Seconds: the first call with another token that is valid."""
GROWTH = 0.0625
"""MiB of resident memory for each concurrent call."""


@pytest.fixture(scope="module")
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest, address: str) -> Iterator[DevCluster]:
    options: dict[str, Any] = {
        "members": 1,
        "workers": 0,
        "tls": True,
        "overrides": [f"schedd.listen.grpc_tokens={address}"],
    }
    with dev_cluster(request.session, **options) as cluster:
        yield cluster


@contextmanager
def flood(address: str, ca: Path, concurrent: int = CONCURRENT) -> Iterator[dict[str, int]]:
    """Send random tokens while the block runs. The counts by status are filled in at its end."""
    codes: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "support.token_flood", address, str(ca), str(concurrent)],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield codes
        finally:
            process.stdin.close()
            codes.update(json.loads(process.stdout.read()))


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def token_of(cluster: DevCluster, name: str, file: Path) -> tuple[tuple[str, str]]:
    """Return the metadata of a new token."""
    cluster.schedctl(
        "auth", "token", "create", name, "--role", "viewer", "--in", "*", "--out", str(file)
    ).check_returncode()
    return (("authorization", f"Bearer {file.read_text().strip()}"),)


@pytest.mark.parametrize("concurrent", [CONCURRENT, MOST_CONCURRENT])
def test_known_tokens_are_served_beside_many_random_ones(
    secured: DevCluster, address: str, tmp_path: Path, concurrent: int
) -> None:
    """All calls are of one method."""
    ca = secured.directory / "tls" / "ca.pem"
    known = token_of(secured, f"known-{concurrent}", tmp_path / "known")
    new = token_of(secured, f"new-{concurrent}", tmp_path / "new")
    pid = secured.entry("m1")["pid"]
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        call: Any = channel.unary_unary(METHOD)

        def seconds_of(metadata: tuple[tuple[str, str]]) -> float:
            asked = time.monotonic()
            call(b"", metadata=metadata, timeout=60)
            return time.monotonic() - asked

        seconds_of(known)
        before, took, most = resident(pid), list[float](), 0.0
        with flood(address, ca, concurrent) as codes:
            began = time.monotonic()
            while time.monotonic() - began < SECONDS:
                took.append(seconds_of(known))
                most = max(most, resident(pid))
                time.sleep(EVERY)
            newcomer = seconds_of(new)
    took.sort()
    median, slowest = took[len(took) // 2], took[-1 - len(took) // 100]
    print(
        f"{concurrent} calls: p50 {median:.3f}, p99 {slowest:.3f}, max {took[-1]:.3f} s of"
        f" {len(took)}; newcomer {newcomer:.3f} s; memory {before:.0f} -> {most:.0f} MiB; {codes}"
    )
    assert codes.keys() == {"UNAUTHENTICATED"}
    assert sum(codes.values()) > CONCURRENT
    assert slowest < WITHIN
    assert newcomer < NEWCOMER_WITHIN
    assert most - before < GROWTH * concurrent


def test_a_single_random_token_is_rejected_at_once(secured: DevCluster, address: str) -> None:
    ca = secured.directory / "tls" / "ca.pem"
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        call: Any = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as rejected:
            call(b"", metadata=(("authorization", f"Bearer {random_token()}"),), timeout=5)
    assert rejected.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
