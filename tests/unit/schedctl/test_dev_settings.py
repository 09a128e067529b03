"""`--set` and the configuration files made from it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedctl.dev.daemons import environment, render
from schedctl.dev.errors import BadOverride
from schedctl.dev.plan import apply, parse
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedctl.files import to_toml

STATE = ClusterState(
    parts={
        "etcd": ClusterPart("etcd", PartKind.ETCD, {"client": 11001, "peer": 11002}),
        "postgres": ClusterPart("postgres", PartKind.POSTGRES, {"sql": 11003}),
        "m1": ClusterPart("m1", PartKind.MEMBER, {"grpc": 11004, "http": 11005}),
        "m2": ClusterPart("m2", PartKind.MEMBER, {"grpc": 11006, "http": 11007}),
        "w1": ClusterPart("w1", PartKind.WORKER, {"http": 11008}),
    },
    slots=4,
    password="secret",
)


def test_silencing_grpc_in_the_command_silences_no_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for said, inherited in (("NONE", None), ("DEBUG", "DEBUG")):
        monkeypatch.setenv("GRPC_VERBOSITY", said)
        assert environment().get("GRPC_VERBOSITY") == inherited


def rendered(name: str, *settings: str) -> dict[str, object]:
    text = render(ClusterFolder(Path("/d")), STATE, STATE.parts[name], [parse(s) for s in settings])
    return tomllib.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("schedd.member_ttl=3s", "3s"),
        ("schedd.weight=0", 0),
        ("schedd.listen.insecure=true", True),
        ('workerd.handlers=["demo_handlers"]', ["demo_handlers"]),
        ("schedd.log_level=debug", "debug"),
        ('schedd.log_level="debug"', "debug"),
        ("schedd.postgres.dsn=postgresql://h/d?a=b", "postgresql://h/d?a=b"),
        ("schedd.log_level=1\nname = 2", "1\nname = 2"),
        ("workerd.labels.zone=", ""),
    ],
)
def test_a_value_is_toml_if_it_parses_and_a_string_otherwise(text: str, value: object) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize("text", ["member_ttl=3s", "schedd.member_ttl", "schedd.=1", ".a=1", "=1"])
def test_a_setting_without_target_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(BadOverride, match=r"TARGET\.KEY=VALUE"):
        parse(text)


@pytest.mark.parametrize("key", ["schedd.name", "m1.listen.grpc", "schedd.listen.http", "w1.spool"])
def test_settings_that_identify_a_daemon_cannot_be_set(key: str) -> None:
    with pytest.raises(BadOverride, match="gives each process its own value"):
        parse(f"{key}=x")


@pytest.mark.parametrize("key", ["schedd.etcd.user", "m1.etcd.password"])
def test_a_login_other_than_that_of_the_stores_cannot_be_set(key: str) -> None:
    with pytest.raises(BadOverride, match=r"schedctl dev creates this user"):
        parse(f"{key}=x")


def test_a_member_gets_its_stores_and_its_addresses() -> None:
    assert rendered("m1") == {
        "name": "m1",
        "listen": {"grpc": "127.0.0.1:11004", "http": "127.0.0.1:11005"},
        "etcd": {"endpoints": ["127.0.0.1:11001"], "user": "schedd", "password": "secret"},
        "postgres": {"dsn": "postgresql://schedd:secret@127.0.0.1:11003/schedd"},
        "egress": {"allow": ["127.0.0.0/8", "::1", "localhost"]},
        "results": {"url": "file:///d/results"},
    }


def test_a_worker_gets_every_member_and_only_the_result_store() -> None:
    assert rendered("w1") == {
        "name": "w1",
        "endpoints": ["127.0.0.1:11004", "127.0.0.1:11006"],
        "slots": 4,
        "spool": "/d/w1",
        "drain_timeout": "10s",
        "egress": {"allow": ["127.0.0.0/8", "::1", "localhost"]},
        "listen": {"http": "127.0.0.1:11008"},
        "results": {"url": "file:///d/results"},
    }


def test_a_setting_reaches_its_kind_and_one_for_a_single_daemon_wins() -> None:
    settings = ["m2.weight=0", "schedd.weight=50", "schedd.postgres.lanes=5", "workerd.slots=1"]
    first, second, worker = (rendered(name, *settings) for name in ("m1", "m2", "w1"))
    assert (first["weight"], second["weight"]) == (50, 0)
    assert first["postgres"] == {"dsn": STATE.dsn, "lanes": 5}
    assert worker["slots"] == 1
    assert "weight" not in worker


def test_the_later_setting_of_a_key_wins() -> None:
    assert apply({}, [parse("schedd.a=1"), parse("schedd.a=2")], "schedd") == {"a": 2}


def test_a_setting_through_a_plain_value_is_refused() -> None:
    with pytest.raises(BadOverride, match="has no keys"):
        apply({"name": "m1"}, [parse("schedd.name.first=x")], "schedd")


scalars = st.none().flatmap(lambda _: st.booleans() | st.integers(-(2**53), 2**53) | st.text())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), values, max_size=4))
def test_written_toml_is_read_back_unchanged(config: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(config)) == config
