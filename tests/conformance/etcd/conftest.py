"""Real etcd for the client's conformance tests: one member, three members, and clients of them.

The clusters live for the session; each test has a root of its own, so that none sees the keys of
another. Tests that hurt a member heal it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from support.etcd import Certificates, EtcdCluster

DEADLINE = 0.5
_roots = itertools.count(1)


@pytest.fixture(scope="session")
def single() -> Iterator[EtcdCluster]:
    """An etcd of one member."""
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def trio() -> Iterator[EtcdCluster]:
    """An etcd of three members."""
    with EtcdCluster(3) as cluster:
        yield cluster


@pytest.fixture
def root() -> str:
    """Return the prefix of all keys of this test."""
    return f"test-{os.getpid()}-{next(_roots)}/"


@pytest.fixture
async def client(single: EtcdCluster, root: str) -> AsyncIterator[EtcdClient]:
    """A client of the single member."""
    async with connect(EtcdAccess(single.endpoints), deadline=DEADLINE, root=root) as client:
        yield client


@pytest.fixture
async def trio_client(trio: EtcdCluster, root: str) -> AsyncIterator[EtcdClient]:
    """A client of all three members."""
    async with connect(EtcdAccess(trio.endpoints), deadline=DEADLINE, root=root) as client:
        yield client


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority and one certificate of it, for servers and clients on 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder)
    openssl(folder, *_NEW_KEY, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key")
    openssl(folder, *sign, "-CAcreateserial", "-out", "node.pem", "-extfile", "san", "-days", "2")
    return Certificates(folder / "ca.pem", folder / "node.pem", folder / "node.key")


_NEW_KEY = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


def make_authority(folder: Path) -> None:
    """`ca.pem` and `ca.key` in the folder."""
    openssl(folder, *_NEW_KEY, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
