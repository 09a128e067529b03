"""A cluster that talks TLS: it works, and all its certificates are changed under load."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import grpc
import pytest

from acceptance.conftest import SHORT_LEASES
from schedclient import TLS, ApiError, Run, SyncClient
from schedctl.dev.records import ClusterFolder, PartKind
from schedctl.dev.servers.certificates import issue
from schedkit.net.channel import LOOK_EVERY, split_address
from schedproto.v1 import worker_service_pb2 as pb
from schedproto.v1.worker_service_pb2_grpc import WorkerServiceStub
from support import fork_server
from support.cluster import DevCluster, dev_cluster
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

BATCH = 5
EVERY = 0.5
"""Seconds between two batches of work."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    options = {"members": 2, "workers": 2, "slots": 8, "overrides": SHORT_LEASES, "tls": True}
    with dev_cluster(request.session, **options) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.endpoints, tls=cluster.files) as client:
        yield client


@dataclass
class Load:
    """Work that was acknowledged, and what wasn't."""

    runs: list[Run] = field(default_factory=list)
    failures: list[ApiError] = field(default_factory=list)


@contextmanager
def load(client: SyncClient) -> Iterator[Load]:
    """Submits work all the time."""
    work, over = Load(), threading.Event()

    def submit() -> None:
        while not over.wait(EVERY):
            for answer in client.submit_many([{"shell": {"argv": ["true"]}}] * BATCH):
                (work.failures if isinstance(answer, ApiError) else work.runs).append(answer)  # type: ignore[arg-type]

    submitting = threading.Thread(target=submit)
    submitting.start()
    try:
        yield work
    finally:
        over.set()
        submitting.join()


def shown_at(cluster: DevCluster, name: str, port: str) -> bytes:
    """The certificate that a member shows at this port."""
    assert cluster.files is not None
    context = ssl.create_default_context(cafile=cluster.files.ca)
    context.load_cert_chain(cluster.files.cert or "", cluster.files.key)
    context.set_alpn_protocols(["h2"])
    address = split_address(cluster.entry(name)[port])
    with (
        socket.create_connection(address, WAIT_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


def on_disk(cluster: DevCluster, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((cluster.directory / "tls" / f"{name}.pem").read_text())


def rotate(cluster: DevCluster) -> None:
    """A fresh certificate for everybody."""
    folder = ClusterFolder(cluster.directory)
    state = folder.load()
    assert state is not None
    issue(folder, [*state.parts_of_kind(PartKind.MEMBER), *state.parts_of_kind(PartKind.WORKER)])


def test_all_certificates_are_changed_under_load_and_no_run_is_lost(
    cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "ticks")
    client.jobs.create("tick", every="1s", shell=probe.shell())
    old = {name: on_disk(cluster, name) for name in ("m1", "m2", "w1", "w2", "dev")}
    with load(client) as work:
        wait_until(lambda: len(work.runs) > 5 * BATCH, WAIT_TIMEOUT, "some work")
        rotate(cluster)
        assert not set(old.values()) & {on_disk(cluster, name) for name in old}
        for name in ("m1", "m2"):
            for port in ("grpc", "http"):
                assert shown_at(cluster, name, port) == on_disk(cluster, name)
        before = len(work.runs)
        turned = time.monotonic() + LOOK_EVERY + 1  # by then clients call by their new ones
        wait_until(lambda: time.monotonic() > turned, LOOK_EVERY + 5, "clients to look")
        wait_until(lambda: len(work.runs) > before + 5 * BATCH, WAIT_TIMEOUT, "more work")
        # All streams and all channels between members start again, with the files on disk.
        leader = wait_until(cluster.leader, WAIT_TIMEOUT, "a leader")
        cluster.terminate(leader)
        cluster.terminate("w1")
        cluster.up()
        before = len(work.runs)
        wait_until(lambda: len(work.runs) > before + 5 * BATCH, WAIT_TIMEOUT, "work afterwards")
    client.jobs.delete("tick")
    assert work.failures == []
    ids = [run.run_id for run in work.runs]
    assert len(set(ids)) == len(ids)
    ended = "SELECT state, count(*) FROM runs WHERE run_id = ANY(%s::uuid[]) GROUP BY state"
    all_well = [("SUCCEEDED", len(ids))]
    wait_until(lambda: cluster.sql(ended, ids) == all_well, 60, "all that was taken to have run")
    states = {run.state for run in client.runs.list(job="tick")}
    assert states <= {"SUCCEEDED", "COALESCED", "CANCELLED"}, states
    assert probe.repeated() == []


def test_the_audit_names_callers_of_schedctl_and_workers_over_tls(cluster: DevCluster) -> None:
    assert cluster.schedctl("submit", "--wait", "--", "true").returncode == 0
    [submitted, *_] = cluster.json("audit", "list", "--action", "submit", "--limit", "1")
    assert submitted["actor"] == "user/dev"
    assert cluster.json("auth", "whoami")["grants"] == [{"namespace": "*", "role": "ADMIN"}]


def test_a_workers_certificate_is_rejected_for_others_and_for_persons(
    cluster: DevCluster,
) -> None:
    """A worker w2 with the files of w1 is rejected, with the reason."""
    folder = cluster.directory / "tls"
    stolen = TLS(folder / "ca.pem", folder / "w1.pem", folder / "w1.key")
    with SyncClient(cluster.endpoints, tls=stolen, timeout=5) as client:
        with pytest.raises(ApiError) as refused:
            client.cluster.status()
        assert refused.value.reason == "WRONG_KIND"
    credentials = grpc.ssl_channel_credentials(
        stolen.ca.read_bytes(),
        (folder / "w1.key").read_bytes(),
        (folder / "w1.pem").read_bytes(),
    )
    hello = pb.Hello(worker="w2", spool_id="stolen", incarnation=str(uuid4()), slots=1)
    with grpc.secure_channel(cluster.entry("m1")["grpc"], credentials) as channel:
        attach = WorkerServiceStub(channel).Attach
        with pytest.raises(grpc.RpcError) as turned:
            next(iter(attach(iter([pb.WorkerFrame(hello=hello)]), timeout=WAIT_TIMEOUT)))
    assert turned.value.code() is grpc.StatusCode.PERMISSION_DENIED
    reason = "the certificate names worker/w1, but the hello worker/w2"
    assert reason in (turned.value.details() or "")


def test_a_worker_and_a_member_with_a_certificate_of_another_dont_start(
    cluster: DevCluster,
) -> None:
    for module, name, other in (("workerd", "w2", "w1"), ("schedd", "m2", "m1")):
        file = cluster.directory / "tls" / "wrong.toml"
        config = (cluster.directory / f"{name}.toml").read_text()
        for end in ("pem", "key"):
            config = config.replace(f"{name}.{end}", f"{other}.{end}")
        file.write_text(config)
        for flags in ([], ["--check-config"]):
            command = [sys.executable, "-P", "-m", module, "--config", str(file), *flags]
            ended = fork_server.run(command, env=cluster.env)
            assert ended.returncode == 2, ended.stderr
            assert f"{other}.pem names 'schedd://" in ended.stderr
            assert f"is '{name}'" in ended.stderr


def test_a_worker_with_a_certificate_for_one_namespace_gets_runs_of_no_other(
    cluster: DevCluster, client: SyncClient
) -> None:
    folder = cluster.directory / "tls"
    own = ["auth", "issue", "worker", "w1", "--in", "billing", "--ca-dir", str(folder)]
    config = (cluster.directory / "w1.toml").read_text()
    for worker in "w1", "w2":
        cluster.terminate(worker)
    try:
        assert cluster.schedctl(*own, "--out", str(folder)).returncode == 0
        elsewhere = client.submit(shell={"argv": ["true"]})
        theirs = client.submit(shell={"argv": ["true"]}, namespace="billing")
        with worker_with(cluster, config):
            assert client.runs.wait(theirs.run_id, timeout=WAIT_TIMEOUT).worker == "w1"
            why = cluster.schedctl("run", "why", elsewhere.run_id).stdout
            assert "of namespace 'default', which no worker's certificate names" in why
            assert client.runs.get(elsewhere.run_id).state == "PENDING"
            assert cluster.json("worker", "describe", "w1")["namespaces"] == ["billing"]
    finally:
        cluster.up()  # with certificates for all namespaces
    assert client.runs.wait(elsewhere.run_id, timeout=WAIT_TIMEOUT).state == "SUCCEEDED"


@contextmanager
def worker_with(cluster: DevCluster, config: str) -> Iterator[list[str]]:
    """A worker with these settings; gives what it has said so far."""
    file = cluster.directory / "tls" / "other.toml"
    file.write_text(config)
    command = [sys.executable, "-P", "-m", "workerd", "--config", str(file)]
    process = fork_server.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cluster.env
    )
    said: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        said.extend(process.stdout)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield said
    finally:
        process.terminate()
        process.wait(60)
        reading.join()
