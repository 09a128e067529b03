"""A real S3 API on this host: moto's server, a process of its own, with a bucket.

with s3_server() as s3:
open_objects(s3.url, s3.options)
s3.stop(); s3.start()      # away for a while; what it held is gone, as it is in memory
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.wait import WAIT_TIMEOUT, wait_until

BUCKET = "schedd-results"


def free_port() -> int:
    """Return a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class S3Server:
    """A server; `url` and `options` are the settings of daemons."""

    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/some/prefix"

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "allow_http": "true",
        }

    def start(self) -> None:
        """Start it, with an empty bucket."""
        log = Path(tempfile.gettempdir()) / f"moto-{self.port}.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
            )
        log.unlink()
        wait_until(self._bucket, 3 * WAIT_TIMEOUT, "the S3 server")

    def pause(self) -> None:
        """Suspend the server: it accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _bucket(self) -> bool:
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running one."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()
