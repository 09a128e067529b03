"""The stores that promise the same: files, and a real S3 API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schedkit.objects import Objects, open_objects
from support.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["files", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "files":
        return open_objects((tmp_path / "a store").as_uri())
    server = request.getfixturevalue("s3")
    return open_objects(server.url, server.options)
