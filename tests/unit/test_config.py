"""Where a member may listen, with and without TLS; and what it says of whom it asks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from schedd.app.configured import tell_who_is_asked
from schedd.config import Config, Listen, Postgres, Results, Tls
from schedkit.errors import Misconfigured

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


def test_but_by_who_asked_for_it_by_name_or_with_tls() -> None:
    HERE.check()
    replace(HERE, listen=replace(ANYWHERE, insecure=True)).check()
    tokens = replace(ANYWHERE, grpc_tokens="0.0.0.0:7423")
    replace(HERE, listen=tokens, tls=SECURE).check()


def test_a_port_for_tokens_takes_tls() -> None:
    listen = Listen(grpc_tokens="127.0.0.1:7423")
    with pytest.raises(Misconfigured, match=r"listen\.grpc_tokens is for TLS"):
        replace(HERE, listen=listen).check()


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
