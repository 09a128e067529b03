"""Identities in certificates, and the rights of roles."""

import pytest

from schedd.core.auth.rights import (
    ANONYMOUS,
    EVERY,
    SECRET_BYTES,
    CallerIdentity,
    IdentityKind,
    Role,
    digest_of,
    identity_of,
    parse_token,
    text_of,
    uri_of,
    uris_of_user,
    uris_of_worker,
)
from schedd.core.ids import AccessTokenId, new_id


@pytest.mark.parametrize("kind", [IdentityKind.MEMBER, IdentityKind.WORKER])
def test_a_member_or_worker_is_named_by_its_certificate(kind: IdentityKind) -> None:
    who = identity_of(["https://elsewhere.example/", uri_of(kind, "n1")])
    assert who == CallerIdentity(kind, "n1")
    assert who.actor == f"{kind.value}/n1"
    assert not who.may_somewhere(Role.VIEWER)


def test_a_worker_may_be_limited_to_namespaces() -> None:
    who = identity_of(uris_of_worker("w1", ["billing", "mail"]))
    assert who == CallerIdentity(
        IdentityKind.WORKER, "w1", works_for=frozenset({"billing", "mail"})
    )
    assert identity_of(uris_of_worker("w1")) == CallerIdentity(IdentityKind.WORKER, "w1")


def test_a_user_has_a_role_in_each_namespace_that_is_named() -> None:
    operator = uris_of_user("alice@example.com", Role.OPERATOR, ["billing", "mail"])
    who = identity_of([*operator, *uris_of_user("alice@example.com", Role.VIEWER, ["web"])])
    assert who is not None
    assert who.roles == {"billing": Role.OPERATOR, "mail": Role.OPERATOR, "web": Role.VIEWER}


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["spiffe://cluster/worker/w1"],
        ["schedd://worker/w1", "schedd://worker/w2"],
        ["schedd://worker/w1", "schedd://member/w1"],
        ["schedd://worker/w1", "schedd://worker/w1"],
        ["schedd://user/alice/admin/*", "schedd://user/bob/viewer/*"],
        ["schedd://user/alice/admin/*", "schedd://worker/alice"],
        ["schedd://user/alice"],
        ["schedd://user/alice/admin"],
        ["schedd://user/alice/admin/"],
        ["schedd://user/alice/root/*"],
        ["schedd://user/alice/admin/*/more"],
        ["schedd://user/alice/viewer/a", "schedd://user/alice/root/b"],
        ["schedd://user//admin/*"],
        ["schedd://worker/w1/"],
        ["schedd://worker/w1/*"],
        ["schedd://worker/w1/Billing"],
        ["schedd://worker/w1/billing/more"],
        ["schedd://worker/w1/billing", "schedd://worker/w2/billing"],
        ["schedd://worker/w1/billing", "schedd://worker/w1"],
        ["schedd://member/m1/billing"],
        ["schedd://worker/w 1"],
        ["schedd://anybody/anonymous"],
        ["schedd://user/alice/admin/*?a=1"],
        ["schedd://user/alice/admin/*#a"],
        ["schedd://user/alice/admin/billing?"],
        ["schedd://user/alice/admin/billing#"],
        ["schedd://user/alice/admin/%2A"],
        ["schedd://user/alice/admin/bill%69ng"],
        ["schedd://user/%61lice/admin/*"],
        ["schedd://user/alice/admin/Billing"],
        ["schedd://user/alice/admin/**"],
        ["schedd://user/alice/admin//*"],
        ["schedd://user/alice//*"],
        ["schedd:///user/alice/admin/*"],
        ["schedd://root@user/alice/admin/*"],
        ["schedd://user:7420/alice/admin/*"],
        ["schedd://user/alice/admin/*", "schedd://user/alice/admin/b?a=1"],
        ["schedd://user/alice/admin/*\n"],
        ["schedd://member/m1?a=1"],
        ["schedd://member/m1#a"],
        ["schedd://member:1/m1"],
        ["schedd://member/m1/"],
        ["schedd://worker/w1/billing?a=1"],
        ["schedd://worker/w1/bill%69ng"],
        ["schedd://root@worker/w1"],
        ["SCHEDD://user/alice/admin/*"],
        ["schedd:user/alice/admin/*"],
        ["schedd://user/alice/admin/*", "Schedd://worker/w1"],
        ["schedd://"],
    ],
)
def test_a_certificate_with_two_identities_or_none_identifies_no_caller(uris: list[str]) -> None:
    assert identity_of(uris) is None


def test_a_role_contains_lower_roles_only_in_its_own_namespace() -> None:
    who = CallerIdentity(IdentityKind.USER, "bob", {"billing": Role.OPERATOR})
    assert who.may(Role.VIEWER, "billing")
    assert who.may(Role.OPERATOR, "billing")
    assert not who.may(Role.ADMIN, "billing")
    assert not who.may(Role.VIEWER, "default")
    assert not who.may(Role.VIEWER, EVERY)


def test_a_role_in_every_namespace_is_one_in_each() -> None:
    who = CallerIdentity(IdentityKind.USER, "root", {EVERY: Role.ADMIN, "billing": Role.VIEWER})
    assert who.may(Role.ADMIN, "billing")
    assert who.may(Role.ADMIN, EVERY)
    assert ANONYMOUS.may(Role.ADMIN, EVERY)


def test_a_token_is_found_again_and_its_secret_is_not_stored() -> None:
    token = AccessTokenId(new_id())
    text, digest = text_of(token, bytes(range(SECRET_BYTES)))
    found = parse_token(text)
    assert found is not None
    assert found[0] == token
    assert digest_of(found[1]) == digest
    assert found[1] not in digest.hex()


@pytest.mark.parametrize("text", ["", "schedd_", "schedd_" + "0" * 32 + "_short", "x" * 10_000])
def test_an_invalid_token_is_none(text: str) -> None:
    assert parse_token(text) is None
