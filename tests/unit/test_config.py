"""Where a member may listen, with and without TLS; and what it says of whom it asks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from schedd.app.configured import reach, tell_who_is_asked
from schedd.config import Config, Listen, Postgres, Results, Tls
from schedkit.errors import Misconfigured
from support.certs import Authority

HERE = Config(postgres=Postgres(dsn="postgresql://x"))
ANYWHERE = Listen(grpc="0.0.0.0:7420", http="0.0.0.0:7421")
SECURE = Tls(Path("/ca"), Path("/cert"), Path("/key"))


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = tmp_path.as_uri()
    monkeypatch.setattr(f"{__name__}.HERE", replace(HERE, results=Results(url=url)))


@pytest.mark.parametrize("where", ["grpc", "http"])
def test_nothing_is_served_to_other_hosts_in_the_clear(where: str) -> None:
    listen = replace(Listen(), **{where: "0.0.0.0:7420"})
    with pytest.raises(Misconfigured, match="not loopback and TLS is not set"):
        replace(HERE, listen=listen).check()


def test_but_by_who_asked_for_it_by_name_or_with_tls(tmp_path: Path) -> None:
    HERE.check()
    replace(HERE, listen=replace(ANYWHERE, insecure=True)).check()
    tokens = replace(ANYWHERE, grpc_tokens="0.0.0.0:7423")
    files = Authority.create(tmp_path).issue("m1", san="URI:schedd://member/m1")
    with_tls = Tls(files.ca, files.cert, files.key)
    replace(HERE, name="m1", listen=tokens, tls=with_tls).check()


def test_all_that_no_field_can_tell_by_itself_is_told_at_once() -> None:
    with pytest.raises(Misconfigured) as told:
        replace(HERE, postgres=Postgres(), tls=SECURE).check()
    said = str(told.value).splitlines()
    starts = ["postgres.dsn is missing", "tls.ca: /ca", "tls.cert: /cert", "tls.key: /key"]
    assert len(said) == len(starts)
    assert all(map(str.startswith, said, starts)), said
    replace(HERE, tls=SECURE).check(certificate=False)
    listen = replace(ANYWHERE, grpc_tokens="0.0.0.0:7423")
    with pytest.raises(Misconfigured) as told:
        replace(HERE, listen=listen).check()
    assert len(str(told.value).splitlines()) == 3


def test_a_port_for_tokens_takes_tls() -> None:
    listen = Listen(grpc_tokens="127.0.0.1:7423")
    with pytest.raises(Misconfigured, match=r"listen\.grpc_tokens is for TLS"):
        replace(HERE, listen=listen).check()


def test_proxies_and_names_of_hosts_are_read_before_anything_listens() -> None:
    listen = Listen(trusted_proxies=("10.0.0.0/24",), host_names=("schedd.example.com", "box"))
    assert listen.proxies().trusts("10.0.0.7")
    assert not Listen().proxies().trusts("127.0.0.1"), "nobody by default"
    for wrong in ("everybody", "10.0.0.1/8", "0.0.0.0/0"):
        with pytest.raises(ValueError, match=r"trusted_proxies: .*no address|.*is everybody"):
            Listen(trusted_proxies=(wrong,))
    for wrong in ("*", "a.example.com:7421", "", "http://a"):
        with pytest.raises(ValueError, match="is no name of a host"):
            Listen(host_names=(wrong,))


def test_without_tls_other_hosts_are_served_by_who_asked_for_it_alone() -> None:
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
        (replace(HERE, tls=SECURE), logging.INFO, "shows a certificate or sends a token"),
    ],
)
def test_it_says_once_whom_it_serves_without_a_question(
    config: Config, level: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        tell_who_is_asked(config)
    [line] = caplog.records
    assert line.levelno == level
    assert said in line.message
