"""A DSN is rejected before a connection exactly if libpq itself can't connect with it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest

from schedd.store.connection.database import Database, url_of
from schedd.store.connection.dsn import faults
from support.certs import Authority

_SSL, _GSS = 80877103, 80877104
"""Codes of a first message that asks for encryption."""


@dataclass(frozen=True)
class Server:
    """A server without authentication, with TLS and without, over TCP and a UNIX socket."""

    folder: Path
    port: int

    def dsn(self, options: str, host: str = "127.0.0.1") -> str:
        """`FOLDER` in the options is where the files are."""
        written = options.replace("FOLDER", str(self.folder))
        return f"postgresql:///d?host={host}&port={self.port}&user=u&connect_timeout=5&{written}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pg")
    files = Authority.create(folder).issue("c")
    assert files.cert is not None
    assert files.key is not None
    files.key.chmod(0o600)
    (folder / "folder").mkdir()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    with (
        socket.create_server(("127.0.0.1", 0)) as by_tcp,
        socket.socket(socket.AF_UNIX) as by_unix,
    ):
        port: int = by_tcp.getsockname()[1]
        by_unix.bind(str(folder / f".s.PGSQL.{port}"))
        by_unix.listen()
        for each in (by_tcp, by_unix):
            threading.Thread(target=_accept, args=(each, context), daemon=True).start()
        yield Server(folder, port)
        for each in (by_tcp, by_unix):
            each.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):  # its end
        while True:
            threading.Thread(target=_serve, args=(listener.accept()[0], context)).start()


def _serve(peer: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError, struct.error):  # it went
        peer.settimeout(10)
        while (code := _first(peer)) in {_SSL, _GSS}:
            peer.sendall(b"S" if code == _SSL else b"N")
            if code == _SSL:
                peer = context.wrap_socket(peer, server_side=True)
        parameters = ("server_version", "15.0"), ("client_encoding", "UTF8"), ("DateStyle", "ISO")
        statuses = [(b"S", f"{name}\0{value}\0".encode()) for name, value in parameters]
        welcome = [(b"R", bytes(4)), *statuses, (b"K", bytes(8)), (b"Z", b"I")]
        peer.sendall(b"".join(kind + struct.pack(">I", len(it) + 4) + it for kind, it in welcome))
        while peer.recv(4096):
            pass
    peer.close()


def _first(peer: socket.socket) -> int:
    (length,) = struct.unpack(">I", peer.recv(4))
    (code,) = struct.unpack_from(">I", peer.recv(length - 4))
    return int(code)


def connects(dsn: str) -> bool:
    try:
        with closing(psycopg2.connect(dsn)):
            return True
    except psycopg2.OperationalError:
        return False


MODES = ("", "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
ROOT = "sslrootcert=FOLDER/ca.pem"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ROOT,
        "sslrootcert=FOLDER/none",
        "sslrootcert=FOLDER/ca.pem/none",
        "sslrootcert=FOLDER/folder",
        f"{ROOT}&sslcert=FOLDER/none",
        f"{ROOT}&sslcert=FOLDER/ca.pem/none",
        f"{ROOT}&sslcert=FOLDER/folder",
        f"{ROOT}&sslcert=FOLDER/folder&sslcertmode=disable",
        f"{ROOT}&sslkey=FOLDER/none",
        f"{ROOT}&sslkey=pkcs11:token%3Dx",
        f"{ROOT}&sslcert=FOLDER/none&sslkey=FOLDER/none",
        f"{ROOT}&sslcert=FOLDER/c.pem&sslkey=FOLDER/none",
        f"{ROOT}&sslcert=FOLDER/c.pem&sslkey=FOLDER/folder",
        f"{ROOT}&sslcert=FOLDER/c.pem&sslkey=FOLDER/c.key",
        f"{ROOT}&sslcert=FOLDER/c.pem&sslkey=FOLDER/none&sslcertmode=disable",
        f"{ROOT}&sslcrl=FOLDER/none",
    ],
)
def test_only_files_that_libpq_requires_are_rejected(server: Server, options: str) -> None:
    for mode in MODES:
        dsn = server.dsn(f"{options}&sslmode={mode}" if mode else options)
        assert (mode, [*faults(dsn)] == []) == (mode, connects(dsn)), [*faults(dsn)]


def test_a_required_client_certificate_must_exist(server: Server) -> None:
    for mode in ("prefer", "require"):
        shown = f"sslcertmode=require&sslkey=FOLDER/c.key&sslmode={mode}"
        assert connects(server.dsn(f"{shown}&sslcert=FOLDER/c.pem"))
        assert [*faults(server.dsn(f"{shown}&sslcert=FOLDER/c.pem"))] == []
        assert not connects(server.dsn(f"{shown}&sslcert=FOLDER/none"))
        [said] = faults(server.dsn(f"{shown}&sslcert=FOLDER/none"))
        assert said.startswith(f"sslcert: {server.folder}/none can't be read: No such file")


def test_tls_options_are_ignored_on_a_unix_socket(server: Server) -> None:
    files = "sslmode=verify-full&sslrootcert=FOLDER/none"
    dsn = server.dsn(files, host=str(server.folder))
    assert connects(dsn)
    assert [*faults(dsn)] == []
    assert [*faults(f"postgresql:///d?host=%40schedd&{files}")] == []


def test_the_key_of_an_engine_is_no_file(server: Server) -> None:
    """Whether there is such an engine, and it has the key, is its own to know."""
    key = "sslmode=require&sslcert=FOLDER/c.pem&sslkey=pkcs11:token%3Dx"
    assert [*faults(server.dsn(key))] == []


@pytest.mark.parametrize(
    "option",
    [
        *("sslmode=REQUIRE", "channel_binding=REQUIRE", "channel_binding=prefer"),
        *("target_session_attrs=Any", "target_session_attrs=any", "gssencmode=Prefer"),
        *("load_balance_hosts=Random", "sslcertmode=Allow", "sslnegotiation=Postgres"),
        *("ssl_min_protocol_version=tlsv1.2", "ssl_max_protocol_version=TLSV1.3"),
        *("ssl_min_protocol_version=tls1.2", "ssl_max_protocol_version=1.3"),
    ],
)
def test_words_are_written_as_libpq_reads_them(server: Server, option: str) -> None:
    assert ([*faults(server.dsn(option))] == []) == connects(server.dsn(option))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u@h/db?application_name=a%40b",
        "postgresql://u@h/db?sslpassword=p%40w",
        "postgresql://u@h/db?options=-c%20search_path%3Da%40b",
        "postgresql://u@h/db?options=-c%20search_path%3Da%3Fb",
        "postgresql:///db?host=%40schedd",
        "postgresql:///db?host=%2Frun%2Fa%40b",
        "postgresql://u:what?@h/db",
        "postgresql://u:p%40ss@h/db?application_name=a",
    ],
)
def test_an_at_may_be_escaped_behind_the_question_mark(dsn: str) -> None:
    assert [*faults(dsn)] == []


@pytest.mark.parametrize(
    "dsn",
    [
        *("u:s3c%00ret@h/db", "u%00:s3cret@h/db", "h/db%00"),
        *("u:s3cret@h/db?application_name=a%00b", "u:s3cret@h/db?a%00b=c", "/db?host=a%00b&host=c"),
        *("u@h/db?password=s3c%00ret", "/db?host=%2Frun%2Fa%00b"),
    ],
)
def test_a_nul_is_rejected_anywhere_since_libpq_ends_there(dsn: str) -> None:
    [fault] = faults(f"postgresql://{dsn}")
    assert fault == "contains a NUL (%00), which libpq rejects"


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("u:my@s3cr3t@h/db", "has an @ in its host: write %40 for one in a password"),
        ("u:my@s3cr3t@h:5432/db", "has an @ in its host: write %40 for one in a password"),
        ("u:my@@s3cr3t@h/db", "has an @ in its host: write %40 for one in a password"),
        (
            "u:my@s3cr3t word/db",
            "has an invalid host; write %2F for each / of a socket directory",
        ),
        ("u:my@h?s3cr3t@h/db", "has an @ behind its ?: write %40 for it, and %3F for a ? in"),
        ("u:my@h?s3cr3t=x@h/db", "has an @ behind its ?: write %40 for it, and %3F for a ? in"),
    ],
)
def test_the_end_of_a_password_is_not_taken_for_a_host_and_shown(dsn: str, said: str) -> None:
    [fault] = faults(f"postgresql://{dsn}")
    assert fault.startswith(said)
    assert "s3cr3t" not in fault


def test_a_password_that_isnt_utf8_is_rejected_and_not_shown() -> None:
    [fault] = faults("postgresql://u:s3c\udcffret@h/db")
    assert fault == "isn't UTF-8"


@pytest.mark.parametrize(
    ("dsn", "given"),
    [
        ("u@%2Fvar%2Frun%2Fpostgresql/db", {"host": "/var/run/postgresql", "user": "u"}),
        ("u@%2Ftmp:5433/db?application_name=x", {"host": "/tmp", "port": "5433"}),
        ("/db?host=/var/run/postgresql", {"host": "/var/run/postgresql"}),
        ("u@h1:5432,h2:5433/db?target_session_attrs=read-write", {"host": "h1,h2"}),
        ("u@h1,h2:5433/db", {"host": "h1,h2", "port": ",5433"}),
        ("u@h1,%2Frun/db", {"host": "h1,/run"}),
        ("u@[::1]:5432,[fd00::2]/db", {"host": "::1,fd00::2"}),
        ("u:p%40%25%2C%2F@a,b/db", {"password": "p@%,/", "host": "a,b"}),
        ("u:p%2C@h/db", {"password": "p,", "host": "h"}),
        ("u@%40abstract/db", {"host": "@abstract"}),
        ("u@h/db?options=-c%20search_path%3Dapp", {"options": "-c search_path=app"}),
        ("?service=billing", {"service": "billing"}),
    ],
)
def test_a_url_is_read_as_libpq_reads_it(dsn: str, given: dict[str, str]) -> None:
    url = url_of(f"postgresql://{dsn}")
    assert [*faults(f"postgresql://{dsn}")] == []
    _, options = url.get_dialect()().create_connect_args(url)
    read = {name: str(value) for name, value in options.items()}
    assert given.items() <= read.items()


def test_a_url_of_several_hosts_that_cant_be_read_repeats_no_password() -> None:
    [fault] = faults("postgresql://u:s3cret@h1:x,h2/db%zz")
    assert fault.startswith("must be a URL such as")


@pytest.mark.parametrize(
    ("dsn", "taken"),
    [
        ("postgresql://schedd:new@h/d?sslmode=disable", True),
        ("postgresql://other@h/d?sslmode=disable", True),
        ("postgresql://schedd:old@h2/d?sslmode=disable", False),
        ("postgresql://schedd:old@h/d2?sslmode=disable", False),
        ("postgresql://schedd:old@h/d", False),
    ],
)
def test_a_running_database_takes_another_login_and_no_other_server(dsn: str, taken: bool) -> None:
    with closing(Database("postgresql://schedd:old@h/d?sslmode=disable")) as database:
        assert database.take_login(dsn) is taken
