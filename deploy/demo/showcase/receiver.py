"""A small HTTP server that a job of the demo posts to. It counts the requests of each run."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver's address, and the requests that arrived."""

    url: str
    arrived: Counter[str] = field(default_factory=Counter)
    """Run id → number of its requests."""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Serve on a free port of loopback until the block ends."""
    arrived: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            arrived[self.headers.get("Schedd-Run-Id", "")] += 1
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Log nothing: the run's own line shows it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="receiver", daemon=True)
        thread.start()
        try:
            yield Receiver(f"http://127.0.0.1:{server.server_port}", arrived)
        finally:
            server.shutdown()
            thread.join()
