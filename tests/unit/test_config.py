"""Addresses, TLS, dependencies and other settings of a member."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schedd.app.composition import reach, tell_who_is_asked
from schedd.config.member_config import (
    Config,
    Etcd,
    ListenConfig,
    Postgres,
    ResultStoreConfig,
    TlsConfig,
)
from schedd.etcd.access import EtcdAccess
from schedkit.clock import utcnow
from schedkit.config.loader import Untimely
from schedkit.errors import Misconfigured
from schedkit.text import duration
from support.certs import Authority

HERE = Config(postgres=Postgres(dsn="postgresql://x"))
ANYWHERE = ListenConfig(grpc="0.0.0.0:7420", http="0.0.0.0:7421", advertise_grpc="m1:7420")
SECURE = TlsConfig(Path("/ca"), Path("/cert"), Path("/key"))


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = tmp_path.as_uri()
    monkeypatch.setattr(f"{__name__}.HERE", replace(HERE, results=ResultStoreConfig(url=url)))


def faults_of(config: Config) -> list[str]:
    """Return the faults of the configuration and of its certificate."""
    return [str(each) for each in (*config.faults(), *config.credentials())]


@pytest.mark.parametrize("where", ["grpc", "http"])
def test_plaintext_is_not_served_to_other_hosts(where: str) -> None:
    listen = replace(ListenConfig(advertise_grpc="m1:7420"), **{where: "0.0.0.0:7420"})
    [said] = faults_of(replace(HERE, listen=listen))
    assert said.startswith(
        f"listen.{where}: the address 0.0.0.0:7420 can be reached from other hosts, but TLS isn't"
        " configured"
    )


def test_other_hosts_are_served_with_tls_or_by_an_explicit_setting(tmp_path: Path) -> None:
    assert faults_of(HERE) == []
    assert faults_of(replace(HERE, listen=replace(ANYWHERE, insecure=True))) == []
    tokens = replace(ANYWHERE, grpc_tokens="0.0.0.0:7423")
    files = Authority.create(tmp_path).issue("m1", san="URI:schedd://member/m1")
    with_tls = TlsConfig(files.ca, files.cert, files.key)
    assert faults_of(replace(HERE, name="m1", listen=tokens, tls=with_tls)) == []


def test_all_faults_over_several_fields_are_reported_at_once() -> None:
    said = faults_of(replace(HERE, postgres=Postgres(), tls=SECURE))
    starts = [
        "postgres.dsn: a value is required",
        "tls.ca: /ca",
        "tls.cert: /cert",
        "tls.key: /key",
    ]
    assert len(said) == len(starts)
    assert all(map(str.startswith, said, starts)), said
    listen = replace(ANYWHERE, grpc_tokens="0.0.0.0:7423")
    assert len(faults_of(replace(HERE, listen=listen))) == 3


def test_a_port_for_tokens_takes_tls() -> None:
    listen = ListenConfig(grpc_tokens="127.0.0.1:7423")
    [said] = faults_of(replace(HERE, listen=listen))
    assert said.startswith("listen.grpc_tokens: needs TLS")


@pytest.mark.parametrize("tls", [TlsConfig(), SECURE], ids=["in the clear", "with TLS"])
@pytest.mark.parametrize("wrong", ["nonsense", "", "::1", "127.0.0.1:99999", ":7420"])
@pytest.mark.parametrize("key", ["grpc", "http"])
def test_an_invalid_address_is_reported_by_its_key(key: str, wrong: str, tls: TlsConfig) -> None:
    config = replace(HERE, listen=replace(ListenConfig(), **{key: wrong}), tls=tls)
    [said] = map(str, config.faults())
    assert said.startswith(f"listen.{key}: address {wrong!r} isn't valid: write host:port")


def test_an_address_for_tokens_is_read_with_tls() -> None:
    config = replace(HERE, listen=ListenConfig(grpc_tokens="zzz"), tls=SECURE)
    [said] = map(str, config.faults())
    assert said == "listen.grpc_tokens: address 'zzz' isn't valid: write host:port"


def test_advertised_addresses_are_checked_too() -> None:
    assert [
        *ListenConfig(advertise_grpc="m1.example.com:7420", advertise_http="[::1]:1").faults()
    ] == []
    for key in ("advertise_grpc", "advertise_http"):
        [said] = ListenConfig(**{key: "nonsense"}).faults()  # type: ignore[arg-type]
        assert (said.where, said.what) == (key, "address 'nonsense' isn't valid: write host:port")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("h:0", "port 0 can't be reached by other hosts: give an address"),
        ("0.0.0.0:7420", "0.0.0.0 can't be reached by other hosts: give an address"),
        ("[::]:7420", ":: can't be reached by other hosts: give an address"),
        (
            "a b:7420",
            "address 'a b:7420' isn't valid: 'a b' isn't a valid host name; write host:port",
        ),
        (
            "a\nb:7420",
            r"address 'a\nb:7420' isn't valid: 'a\nb' isn't a valid host name; write host:port",
        ),
        (
            "256.0.0.1:7420",
            (
                "address '256.0.0.1:7420' isn't valid: '256.0.0.1' isn't a valid host name;"
                " write host:port"
            ),
        ),
    ],
)
def test_the_advertised_address_must_be_reachable(wrong: str, said: str) -> None:
    for key in ("advertise_grpc", "advertise_http"):
        [found] = ListenConfig(**{key: wrong}).faults()  # type: ignore[arg-type]
        assert (found.where, found.what) == (key, said)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[::0]"])
def test_a_member_that_listens_everywhere_needs_an_advertised_address(host: str) -> None:
    config = replace(HERE, listen=ListenConfig(grpc=f"{host}:7420", insecure=True))
    place = host.strip("[]")
    said = f"listen.grpc: {place} can't be reached by other hosts: set listen.advertise_grpc"
    assert faults_of(config) == [said]
    assert [*config.faults()] == [], "a migration listens nowhere"
    listen = replace(config.listen, advertise_grpc="m1.example.com:7420")
    assert faults_of(replace(HERE, listen=listen)) == []


@pytest.mark.parametrize("name", ["m1", "M1.example.com", "a_b", "x" * 128])
def test_a_member_may_have_its_hosts_name(name: str) -> None:
    assert [*replace(HERE, name=name).faults()] == []


@pytest.mark.parametrize(
    "name", ["", " ", "M 1!", "a/b", "m1\n", "m\x1b1", ".m1", "m1-", "ä", "x" * 129]
)
def test_a_member_has_a_name_that_others_can_write(name: str) -> None:
    [said] = map(str, replace(HERE, name=name).faults())
    assert said.startswith(f"name: {name!r} must match ")


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://u:s3cr3t@127.0.0.1:2379", "u:s3cr3t@127.0.0.1:2379", "s3cr3t@h:1", "s3cr3t@"),
        *("http://u:s3cr3t,x@h:1", "http://u:x,s3cr3t,y@h:1", "https://u:70000,x@h:1"),
    ],
)
def test_an_etcd_user_in_an_endpoint_is_refused_and_not_repeated(endpoint: str) -> None:
    """A variable is parted at its commas, those of a password too."""
    endpoints = ("a:1", *endpoint.split(","))
    said = "an endpoint must not contain a user; give etcd.user and etcd.password"
    assert [*map(str, Etcd(endpoints=endpoints).faults())] == [f"endpoints: {said}"]
    with pytest.raises(Misconfigured, match=f"^etcd: {said}$"):
        EtcdAccess(endpoints)


@pytest.mark.parametrize(
    "endpoint", ["s3cr3t", "http://u:s3cr3t", "https://u:s3cr3t", "x://s3cr3t"]
)
def test_no_endpoint_is_repeated_that_has_no_port(endpoint: str) -> None:
    [said] = map(str, Etcd(endpoints=("a:1", endpoint)).faults())
    assert said == "endpoints: an endpoint has no port, or an invalid one; write host:port"


def test_two_listeners_cannot_share_a_port() -> None:
    for http in ("127.0.0.1:7420", "0.0.0.0:7420"):
        [said] = ListenConfig(http=http).faults()
        assert str(said) == f"http: {http} is already the address of listen.grpc"
    assert len([*ListenConfig(grpc_tokens="127.0.0.1:7421").faults()]) == 1
    assert [*ListenConfig(grpc="127.0.0.1:0", http="127.0.0.1:0").faults()] == []
    assert [*ListenConfig(grpc="127.0.0.1:7420", http="127.0.0.2:7420").faults()] == []


@pytest.mark.parametrize(
    ("etcd", "said"),
    [
        (Etcd(endpoints=()), "endpoints: no server is given; write host:port"),
        (Etcd(endpoints=("a:1", "x://a:1")), "endpoints: 'x://a:1' isn't a valid endpoint; write"),
        (Etcd(endpoints=("a:0",)), "endpoints: port 0 isn't valid: 'a:0'"),
        (Etcd(endpoints=("http://a b:1",)), "endpoints: address 'a b:1' isn't valid: 'a b'"),
        (
            Etcd(endpoints=("256.0.0.1:1",)),
            (
                "endpoints: address '256.0.0.1:1' isn't valid: '256.0.0.1' isn't a valid host name;"
                " write host:port"
            ),
        ),
        (Etcd(endpoints=("https://a:1",)), "endpoints: 'https://a:1' needs TLS"),
        (Etcd(user="u"), "user: user and password must be given together"),
        (Etcd(password="p"), "password: user and password must be given together"),
        (Etcd(cert=Path(__file__)), "cert: cert and key must be given together"),
    ],
)
def test_settings_that_etcd_cant_be_reached_by_are_reported(etcd: Etcd, said: str) -> None:
    [found] = map(str, etcd.faults())
    assert found.startswith(said)


def test_a_missing_file_for_etcd_is_reported_with_the_certificate() -> None:
    config = replace(HERE, etcd=Etcd(ca=Path("/none")))
    assert [*config.faults()] == [], "nothing that a migration needs"
    [said] = faults_of(config)
    assert said.startswith("etcd.ca: /none can't be read: No such file or directory; ")


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    authority = Authority.create(tmp_path_factory.mktemp("etcd"))
    one, other = authority.issue("one"), authority.issue("other")
    assert one.cert
    assert one.key
    assert other.key
    files = {"ca": one.ca, "cert": one.cert, "key": one.key, "another": other.key}
    for name, text in {"empty": "", "prose": "root:x:0:0\n"}.items():
        files[name] = authority.folder / name
        files[name].write_text(text)
    files["pipe"] = authority.folder / "pipe"
    os.mkfifo(files["pipe"])
    return files


@pytest.mark.parametrize(
    ("ca", "cert", "key", "said"),
    [
        ("prose", None, None, ["etcd.ca: FOLDER/prose contains no certificate of an authority"]),
        ("empty", None, None, ["etcd.ca: FOLDER/empty contains no certificate of an authority"]),
        ("pipe", None, None, ["etcd.ca: FOLDER/pipe can't be read: it isn't a regular file"]),
        (
            *("ca", "prose", "prose"),
            [
                "etcd.cert: FOLDER/prose isn't a readable certificate: give the PEM file",
                "etcd.key: FOLDER/prose isn't a readable private key: give the PEM file",
            ],
        ),
        ("ca", "cert", "another", ["etcd.key: FOLDER/other.key is the key of another certificate"]),
        ("ca", "cert", "key", []),
        ("ca", None, None, []),
    ],
)
def test_etcd_files_are_checked_like_tls_files(
    ca: str, cert: str | None, key: str | None, said: list[str], pems: dict[str, Path]
) -> None:
    etcd = Etcd(ca=pems[ca], cert=cert and pems[cert], key=key and pems[key])  # type: ignore[arg-type]
    found = [
        one.replace(str(pems["ca"].parent), "FOLDER") for one in faults_of(replace(HERE, etcd=etcd))
    ]
    assert len(found) == len(said), found
    assert all(map(str.startswith, found, said)), found


def test_an_expired_etcd_certificate_may_be_renewed(pems: dict[str, Path]) -> None:
    etcd = Etcd(ca=pems["ca"], cert=pems["cert"], key=pems["key"])
    [late] = etcd.unusable(utcnow() + timedelta(days=9))
    assert isinstance(late, Untimely)
    assert late.where == "etcd.cert"


@pytest.mark.parametrize("dsn", ["not a dsn", "mysql://u@h/d", "postgresql://u@h:port/d"])
def test_a_dsn_is_a_url_and_is_not_shown(dsn: str) -> None:
    [said] = map(str, Postgres(dsn).faults())
    assert said == "dsn: must be a URL such as postgresql://USER@HOST/DATABASE"
    assert [*Postgres("postgresql+psycopg2://u@/d?host=a:5432&host=b:5432").faults()] == []


def test_a_dsn_with_several_hosts_in_one_place_is_rejected_with_the_right_form() -> None:
    [said] = map(str, Postgres("postgresql://u:hidden@h1:1,h2:,h3:port/x%").faults())
    form = "postgresql://USER@HOST1:5432,HOST2:5432/DATABASE?target_session_attrs=read-write"
    assert said == (
        f"dsn: must be a URL such as postgresql://USER@HOST/DATABASE, or with several hosts {form}"
    )
    assert [*Postgres(form).faults()] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("nosuch=1", 'invalid connection option "nosuch"'),
        ("sslmode=bogus", "sslmode must be one of disable, allow, prefer, require, verify-ca, "),
        ("sslmode=require&sslmode=disable", "sslmode must be one of"),
        ("target_session_attrs=best", "target_session_attrs must be one of any, "),
        ("connect_timeout=soon", "connect_timeout must be a whole number"),
        ("port=0", "has a port that isn't from 1 to 65535"),
        ("sslmode=verify-full&sslrootcert=/none", "sslrootcert: /none can't be read: No such file"),
        ("sslmode=require&sslcert=/", "sslcert: / can't be read: it isn't a regular file"),
        (f"sslmode=require&sslcert={__file__}&sslkey=/none", "sslkey: /none can't be read: No"),
    ],
)
def test_the_options_of_a_dsn_are_checked_before_anything_connects(options: str, said: str) -> None:
    [found] = Postgres(f"postgresql://u:s3cr3t@h/d?{options}").faults()
    assert found.where == "dsn"
    assert found.what.startswith(said)
    assert "s3cr3t" not in found.what


def test_a_dsn_may_have_all_options_of_libpq() -> None:
    here = Path(__file__)
    tls = f"sslmode=verify-full&sslrootcert={here}&ssl_min_protocol_version=tlsv1.2"
    for options in (
        *("sslmode=verify-full&sslrootcert=system", "options=-c%20search_path%3Dx", tls),
        *("target_session_attrs=read-write&host=a:5432&host=b:5433", "host=/run/postgresql"),
        *("connect_timeout=3&keepalives=1", "service=schedd", "application_name=x"),
    ):
        assert [*Postgres(f"postgresql://u@/d?{options}").faults()] == []
    assert [*Postgres("postgresql://u:p%40ss%3F@h:5432/d").faults()] == []
    assert [*Postgres("postgresql://u@[::1]:5432/d").faults()] == []
    for wrong in ("h:99999", "256.0.0.1", "a b"):
        assert len([*Postgres(f"postgresql://u@{wrong}/d").faults()]) == 1


def test_a_password_that_ends_too_early_is_not_shown() -> None:
    [said] = map(str, Postgres("postgresql://u:p@h?s3cr3t=x@h/d").faults())
    assert "s3cr3t" not in said


@pytest.mark.parametrize("password", ["s3cr3t", "s3,cr'3t", "s3 cr/3@t", "s3\n'cr\"3t"])
def test_a_password_in_the_result_stores_address_is_not_repeated(password: str) -> None:
    results = ResultStoreConfig(url=f"nosuch://k:{password}@b/p")
    [said] = map(str, replace(HERE, results=results).faults())
    assert said.replace('"', "'").startswith(
        "results.url: the result store 'nosuch://***@b/p' has an unknown scheme"
    )


def test_proxies_and_names_of_hosts_are_read_before_anything_listens() -> None:
    listen = ListenConfig(
        trusted_proxies=("10.0.0.0/24",), host_names=("schedd.example.com", "box")
    )
    assert [*listen.faults()] == []
    assert listen.proxies().trusts("10.0.0.7")
    assert not ListenConfig().proxies().trusts("127.0.0.1"), "no proxy by default"
    for wrong in ("everybody", "10.0.0.1/8", "0.0.0.0/0"):
        [said] = map(str, ListenConfig(trusted_proxies=(wrong,)).faults())
        assert re.match(r"trusted_proxies: .*valid address|.*contains every address", said)
    for wrong in ("*", "a.example.com:7421", "", "http://a"):
        [said] = map(str, ListenConfig(host_names=(wrong,)).faults())
        assert said.endswith("isn't a valid host name")


@pytest.mark.parametrize("key", ["trusted_proxies", "host_names"])
@pytest.mark.parametrize("address", ["u:s3cr3t@h", "u:s3cr3t,x@h", "u:x,s3cr3t,y@h"])
def test_no_proxy_and_no_name_is_repeated_where_one_has_a_user(key: str, address: str) -> None:
    """A variable is parted at its commas, those of a password too."""
    given: Any = {key: ("10.0.0.7", *address.split(","))}
    said = f"{key}: no address takes a user or password: one has an @ in it"
    assert [*map(str, ListenConfig(**given).faults())] == [said]


def test_a_plaintext_member_serves_other_hosts_only_by_an_explicit_setting() -> None:
    assert reach(HERE).loopback_alone
    assert not reach(replace(HERE, listen=replace(ANYWHERE, insecure=True))).loopback_alone
    assert not reach(replace(HERE, tls=SECURE)).loopback_alone


@pytest.mark.parametrize(
    ("config", "level", "said"),
    [
        (HERE, logging.INFO, "everybody on this host may do everything"),
        (
            replace(HERE, listen=replace(ANYWHERE, insecure=True)),
            logging.WARNING,
            "insecure = true: everybody who reaches this member may do everything",
        ),
        (replace(HERE, tls=SECURE), logging.INFO, "must show a certificate or send a token"),
    ],
)
def test_a_member_without_authentication_logs_one_warning(
    config: Config, level: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        tell_who_is_asked(config)
    [line] = caplog.records
    assert line.levelno == level
    assert said in line.message


@pytest.mark.parametrize("ttl", ["2s", "2d", "3650000d"])
def test_a_lease_is_within_the_limits_of_etcd_and_deadlines(ttl: str) -> None:
    for key in ("member_ttl", "worker_ttl"):
        wrong = replace(HERE, **{key: duration.parse(ttl)})  # type: ignore[arg-type]
        assert [*map(str, wrong.faults())] == [f"{key}: the duration must be from 3s to 1d"]
