"""`schedctl auth`: an authority, its certificates, and tokens."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from google.protobuf.timestamp_pb2 import Timestamp

from schedctl import contexts
from schedctl.session import Session
from schedd.core.auth.rights import Role, identity_of
from schedkit.net.channel import TLS
from schedproto.v1 import auth_service_pb2 as auth
from support.scripted import Refusal, Scripted

SECRET = f"schedd_{'0' * 32}_{'x' * 43}"


def stamped(at: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(at)
    return found


TOKEN = auth.Token(
    token_id="0" * 8,
    name="bob",
    role=auth.ROLE_VIEWER,
    namespaces=["billing"],
    created_at=stamped(datetime(2026, 1, 1, tzinfo=UTC)),
    created_by="user/alice",
    expires_at=stamped(datetime(2026, 2, 1, tzinfo=UTC)),
)


def created_token(request: auth.CreateTokenRequest) -> auth.CreateTokenResponse:
    return auth.CreateTokenResponse(token=TOKEN, secret=SECRET)


async def test_revoking_a_revoked_token_shows_the_first_time_and_actor(
    ctl: Any, member: Scripted
) -> None:
    revoked = auth.Token(
        revoked_at=stamped(datetime(2026, 1, 2, tzinfo=UTC)), revoked_by="user/eve"
    )
    revoked.MergeFrom(TOKEN)
    member.say("RevokeToken", revoked)
    ended = await ctl("auth", "token", "revoke", TOKEN.token_id)
    assert ended.code == 0
    assert ended.err + ended.out == "token of bob revoked: 2026-01-02T00:00:00.000Z, by user/eve\n"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 token that callers created with this token revoked, too\n"),
        (3, "3 tokens that callers created with this token revoked, too\n"),
        (1000, "1000 or more tokens that callers created with this token revoked, too\n"),
    ],
)
async def test_a_revocation_shows_how_many_tokens_it_revoked_too(
    ctl: Any, member: Scripted, count: int, said: str
) -> None:
    member.say("RevokeToken", auth.Token(descendants_revoked=count))
    ended = await ctl("auth", "token", "revoke", TOKEN.token_id)
    assert ended.err.splitlines(keepends=True)[1] == said
    member.say("RevokeToken", auth.Token(token_id=TOKEN.token_id, descendants_revoked=count))
    ended = await ctl("auth", "token", "revoke", TOKEN.token_id, "-o", "json")
    assert json.loads(ended.out)["descendantsRevoked"] == count


async def test_a_wide_list_shows_the_maker_of_a_token(ctl: Any, member: Scripted) -> None:
    made_by = auth.Token(creator_id="1" * 8)
    made_by.MergeFrom(TOKEN)
    member.say("ListTokens", lambda _: auth.ListTokensResponse(tokens=[made_by]))
    wide = await ctl("auth", "token", "list", "-o", "wide")
    assert (wide.lines[0].split()[-1], wide.lines[1].split()[-1]) == ("CREATOR", "11111111")


async def test_a_new_token_is_alone_on_stdout(ctl: Any, member: Scripted) -> None:
    member.say("CreateToken", created_token)
    flags = ("--role", "viewer", "--in", "billing", "--lifetime", "7d")
    ended = await ctl("auth", "token", "create", "bob", *flags)
    assert (ended.code, ended.out) == (0, f"{SECRET}\n")
    [sent] = member.received("CreateToken")
    assert (sent.name, sent.role, [*sent.namespaces]) == ("bob", auth.ROLE_VIEWER, ["billing"])
    assert sent.lifetime.ToTimedelta() == timedelta(days=7)
    assert SECRET not in ended.err


CREATE = ("auth", "token", "create", "bob", "--role", "admin", "--out")


async def test_a_new_token_is_written_to_a_private_file(
    ctl: Any, member: Scripted, home: Path
) -> None:
    member.say("CreateToken", created_token)
    file = home / "token"
    ended = await ctl(*CREATE, str(file))
    assert (ended.code, ended.out) == (0, "")
    assert file.read_text() == f"{SECRET}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_no_token_is_created_for_an_existing_file(
    ctl: Any, member: Scripted, home: Path
) -> None:
    member.say("CreateToken", created_token)
    file = home / "token"
    file.write_text("another token")
    ended = await ctl(*CREATE, str(file))
    assert ended.code == 2
    assert f"error: the file {file} already exists, and isn't overwritten" in ended.err
    assert file.read_text() == "another token"
    assert member.received("CreateToken") == []


async def test_no_token_is_created_for_an_impossible_file(
    ctl: Any, member: Scripted, home: Path
) -> None:
    member.say("CreateToken", created_token)
    ended = await ctl(*CREATE, str(home / "nowhere" / "token"))
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3
    assert "nowhere/token can't be used: No such file or directory" in ended.err
    assert member.received("CreateToken") == []


async def test_a_rejected_token_leaves_no_file(ctl: Any, member: Scripted, home: Path) -> None:
    member.say("CreateToken", Refusal("PERMISSION_DENIED", reason="ROLE_MISSING"))
    ended = await ctl(*CREATE, str(home / "token"))
    assert ended.code == 4
    assert not (home / "token").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (TOKEN, "this token was revoked"),
        (Refusal("UNAVAILABLE"), f"schedctl auth token revoke {TOKEN.token_id}"),
    ],
    ids=["revoked", "named"],
)
async def test_a_token_that_cannot_be_written_is_revoked_or_named(
    member: Scripted, home: Path, answer: Any, remedy: str
) -> None:
    """The process may write no byte to any file."""
    member.say("CreateToken", created_token)
    member.say("RevokeToken", answer)
    argv = [sys.executable, "-m", "schedctl", *CREATE, str(home / "token"), "--timeout", "10"]
    ended = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SCHEDCTL_ENDPOINTS": member.address},
    )
    out, err = await ended.communicate()
    assert (ended.returncode, out) == (2, b"")
    assert f"error: {home / 'token'} can't be used: File too large" in err.decode()
    assert remedy in err.decode()
    assert SECRET not in err.decode()
    assert {one.token_id for one in member.received("RevokeToken")} == {TOKEN.token_id}
    assert not (home / "token").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (TOKEN, "this token was revoked"),
        (Refusal("PERMISSION_DENIED"), f"schedctl auth token revoke {TOKEN.token_id}"),
        (KeyboardInterrupt, f"schedctl auth token revoke {TOKEN.token_id}"),
    ],
    ids=["revoked", "named", "interrupted again"],
)
async def test_a_token_is_revoked_or_named_when_writing_it_is_interrupted(
    ctl: Any, member: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, said: str
) -> None:
    member.say("CreateToken", created_token)
    if answer is not KeyboardInterrupt:
        member.say("RevokeToken", answer)

    def interrupted(*_: Any) -> Any:
        if answer is KeyboardInterrupt:
            monkeypatch.setattr(Session, "run", interrupted)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    ended = await ctl(*CREATE, str(home / "token"))
    assert (ended.code, ended.out) == (130, "")
    assert said in ended.err
    assert SECRET not in ended.err
    assert len(member.received("RevokeToken")) == (answer is not KeyboardInterrupt)
    assert not (home / "token").exists()


async def test_a_rejected_token_exits_with_4(ctl: Any, member: Scripted) -> None:
    expired = Refusal("UNAUTHENTICATED", "the access token has expired", reason="TOKEN_EXPIRED")
    member.say("GetIdentity", expired)
    ended = await ctl("auth", "whoami")
    assert ended.code == 4
    assert "TOKEN_EXPIRED" in ended.err


async def test_tokens_are_listed_without_secrets(ctl: Any, member: Scripted) -> None:
    member.say("ListTokens", lambda _: auth.ListTokensResponse(tokens=[TOKEN]))
    ended = await ctl("auth", "token", "list")
    assert ended.lines[1].split()[:4] == ["00000000", "bob", "VIEWER", "billing"]


async def test_whoami_shows_the_actor_and_its_roles(ctl: Any, member: Scripted) -> None:
    grants = [auth.Identity.Grant(namespace="*", role=auth.ROLE_OPERATOR)]
    member.say("GetIdentity", lambda _: auth.Identity(actor="user/bob", grants=grants))
    ended = await ctl("auth", "whoami")
    assert "user/bob" in ended.out
    assert "operator all namespaces" in ended.out


def test_an_authority_is_created_and_issues_certificates(offline: Any, home: Any) -> None:
    assert offline("auth", "init").code == 0
    issued = offline("auth", "issue", "user", "alice", "--role", "admin", "--out", str(home))
    ca, cert, key = issued.lines
    names = x509.load_pem_x509_certificate((home / "alice.pem").read_bytes()).extensions
    uris = names.get_extension_for_class(x509.SubjectAlternativeName).value
    who = identity_of(uris.get_values_for_type(x509.UniformResourceIdentifier))
    assert who is not None
    assert (who.actor, who.roles) == ("user/alice", {"*": Role.ADMIN})
    flags = ("--ca", ca, "--cert", cert, "--key", key)
    assert offline("config", "set", "prod", "--at", "m1:7420,m2:7420", *flags).code == 0
    kept = contexts.current()
    assert kept is not None
    assert kept.endpoints == ("m1:7420", "m2:7420")
    assert kept.tls == TLS(home / "ca.pem", home / "alice.pem", home / "alice.key")
    again = offline("auth", "init")
    assert again.code == 2
    assert "a certificate authority already exists in" in again.err
    assert (
        "try: issue certificates with this authority: schedctl auth issue; or give another folder:"
        " --ca-dir" in again.err
    )
    assert "config contexts" not in again.err
    other = offline("auth", "init", "--ca-dir", str(home / "other"))
    assert other.code == 0
    flags = ("--role", "admin", "--out", str(home), "--ca-dir", str(home / "other"))
    mixed = offline("auth", "issue", "user", "bob", *flags)
    assert mixed.code == 2
    assert f"{home / 'ca.pem'} doesn't contain the certificate of this authority" in mixed.err
    append = f"append {home / 'other' / 'ca.pem'} to {home / 'ca.pem'}"
    assert f"try: {append}, or give another folder: --out DIR" in mixed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("user alice", "a user's certificate must have --role"),
        ("user alice --role admin --host h", "a user's certificate must have --role"),
        ("user alice --role admin --in Billing", "namespace 'Billing' isn't valid"),
        ("member m1", "a member's certificate needs --host"),
        ("member m1 --host m1:7420 --role admin", "--role doesn't apply to a member's certificate"),
        ("member m1 --host https://m1", "isn't valid"),
        ("member m1 --host m1:7420", "isn't valid"),
        ("worker w1 --host h", "--host doesn't apply to a worker's certificate"),
        ("worker w/1", "name 'w/1' isn't valid"),
        ("worker W1", "worker name 'W1' isn't valid"),
        ("worker a@b", "worker name 'a@b' isn't valid"),
        ("member a+b --host h", "member name 'a+b' isn't valid"),
        ("worker w1 --role viewer", "--role doesn't apply to a worker's certificate"),
        ("robot n", "is not one of"),
    ],
)
def test_invalid_subjects_are_refused_before_anything_is_signed(
    offline: Any, home: Any, words: str, said: str
) -> None:
    offline("auth", "init")
    ended = offline("auth", "issue", *words.split(), "--out", str(home / "out"))
    assert ended.code == 2
    assert said in ended.err
    assert not (home / "out").exists()


def test_without_an_authority_nothing_is_signed(offline: Any, home: Any) -> None:
    ended = offline("auth", "issue", "worker", "w1", "--out", str(home))
    assert ended.code == 2
    assert "no certificate authority found in" in ended.err
    assert (
        "try: create an authority: schedctl auth init; or name the folder of an existing one:"
        " --ca-dir" in ended.err
    )
    assert "config contexts" not in ended.err


@pytest.mark.parametrize("words", ["init --ca-dir", "issue worker w1 --out"])
def test_a_full_disk_is_reported_and_leaves_no_folder(
    offline: Any, home: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    offline("auth", "init")
    kept = home / "kept"
    kept.mkdir()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for folder in (home / "new" / "ca", kept):
        ended = offline("auth", *words.split(), str(folder))
        assert ended.code == 2
        assert "No space left on device" in ended.err
        assert "try: free disk space, or name another path" in ended.err
        assert "writable" not in ended.err
    assert not (home / "new").exists()
    assert [*kept.iterdir()] == []


@pytest.mark.parametrize("name", ["ca", "CA"])
def test_names_of_the_authoritys_own_files_are_reserved(
    offline: Any, home: Path, name: str
) -> None:
    authority = home / "ca"
    offline("auth", "init", "--ca-dir", str(authority))
    before = {file.name: file.read_bytes() for file in authority.iterdir()}
    for out in (authority, home / "elsewhere"):
        flags = ("--role", "admin", "--ca-dir", str(authority), "--out", str(out))
        ended = offline("auth", "issue", "user", name, *flags)
        assert ended.code == 2
        assert f"name {name!r} is reserved for the files of the certificate authority" in ended.err
    assert {file.name: file.read_bytes() for file in authority.iterdir()} == before
    assert not (home / "elsewhere").exists()


@pytest.mark.parametrize(
    "words",
    [
        "auth init --ca-dir /proc/x",
        "auth init --ca-dir /dev/null/x",
        "auth issue worker w1 --out /proc/x",
        "auth issue worker w1 --out /dev/null/x",
        "auth issue worker w1 --ca-dir /dev/null/x",
        "apply -f /proc/x",
        "apply -f /proc/self/mem",
        "cron lint -f /proc/self/mem",
        "submit --payload @/proc/x -- true",
    ],
)
def test_an_unusable_path_is_a_usage_error(offline: Any, words: str) -> None:
    offline("auth", "init")
    ended = offline(*words.split())
    assert ended.code == 2
    assert [line.split(":")[0].strip() for line in ended.err.splitlines()] == [
        *("error", "why", "try")
    ]
    assert "/dev/null" in ended.err or "/proc/" in ended.err


def test_a_wrong_token_lifetime_is_reported_with_its_flag(offline: Any) -> None:
    assert (
        "Lifetime of the token, from 1m to 366d."
        in offline("auth", "token", "create", "--help").out
    )


def test_a_context_with_a_token_needs_only_the_authority(offline: Any, home: Any) -> None:
    for name in ("ca.pem", "token"):
        (home / name).write_text("x")
    flags = ("--ca", str(home / "ca.pem"), "--token-file", str(home / "token"))
    assert offline("config", "set", "prod", "--at", "m1:7423", *flags).code == 0
    kept = contexts.current()
    assert kept is not None
    assert (kept.tls, kept.token_file) == (TLS(home / "ca.pem"), home / "token")
    wrong = offline("config", "set", "prod", "--at", "m1:1", "--cert", str(home / "ca.pem"))
    assert wrong.code == 2
