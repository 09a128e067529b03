"""Tokens made by a token or a login end with it: at any depth, everywhere, with their streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from schedd.api.auth.access_tokens import MOST_DEEP, MOST_NOTED
from schedd.api.auth.authentication import FRESH
from schedd.api.errors import UnauthenticatedError
from schedd.core.auth.rights import AccessTokenRecord
from schedd.core.ids import AccessTokenId, Id, new_id
from schedd.store.access_tokens import MOST_LOGINS, MOST_MARKED
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedproto.v1 import auth_service_pb2 as auth
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.web import Web, bearer, served, token

MANY, AT_A_TIME = 30_000, 10_000
ON_TOP = 2.0
"""Seconds that the machine may take for what takes FRESH."""


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn, demanded=True) as face:
        yield face


def expire_token_cache(web: Web) -> None:
    """Expire the member's token cache, as any revocation at this member does."""
    web.services.authentication.revoked(AccessTokenId(new_id()))


async def create_token(
    web: Web, sent: dict[str, str], name: str = "bot", **more: Any
) -> tuple[str, str]:
    """The id and text of a token that was made by who sends this."""
    body = {"name": name, "role": "ADMIN", **more}
    answer = await web.ask("POST", "/api/v1/tokens", json=body, headers=sent)
    assert answer.status == 200, answer.text
    return answer.json["token"]["tokenId"], answer.json["secret"]


async def log_in(web: Web, text: str) -> dict[str, str]:
    """Log in, and retry where the answer is 503: after 30,000 inserts the disk of a busy host may
    take longer than a login waits.
    """
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            answer = await web.ask("POST", "/login", data={"token": text}, allow_redirects=False)
            if answer.status != 503:
                return {"cookie": str(answer.headers["set-cookie"]).partition(";")[0]}
            await asyncio.sleep(0.5)


async def revoke(web: Web, token_id: str, text: str) -> dict[str, Any]:
    path = f"/api/v1/tokens/{token_id}:revoke"
    answer = await web.ask("POST", path, json={}, headers=bearer(text))
    assert answer.status == 200, answer.text
    return dict(answer.json)


async def reason(web: Web, sent: dict[str, str]) -> str:
    """Return why the sender isn't authenticated; empty if it is."""
    answer = await web.get("/api/v1/identity", headers=sent)
    return str(answer.json["reason"]) if answer.status == 401 else ""


async def refused(web: Web, sent: dict[str, str]) -> bool:
    return await reason(web, sent) == "TOKEN_REVOKED"


async def found(web: Web, token_id: str) -> AccessTokenRecord:
    there = await web.services.access_tokens.find(AccessTokenId(Id.parse(token_id)))
    assert there is not None
    return there


async def audited(web: Web, action: str, token_id: str) -> Any:
    """Return the state after in the last such line of the audit."""
    lines = await web.services.store.list_audit(action, f"token/{token_id}", None, None, 1)
    return [json.loads(entry.after or "null") for _, entry in lines]


async def run(web: Web, statement: str, *given: Any) -> Any:
    return await web.store.database.call(lambda c: c.exec_driver_sql(statement, given))


async def test_revoking_a_token_revokes_all_tokens_made_by_it_at_every_member(
    web: Web, dsn: str
) -> None:
    """A token by a token by a token, a login of that, a token by the login: and no other token."""
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    child = await create_token(web, bearer(top[1]))
    grandchild = await create_token(web, bearer(child[1]))
    login = await log_in(web, grandchild[1])
    last = await create_token(web, login)
    other = await create_token(web, bearer(root[1]))
    for one, maker in ((top, None), (child, top), (grandchild, child), (other, root)):
        parent = (await found(web, one[0])).maker
        assert parent == (maker and Id.parse(maker[0]))
    theirs = [bearer(text) for _, text in (top, child, grandchild, last)] + [login]
    async with served(dsn, demanded=True) as far:
        for sent in theirs:
            assert await reason(far, sent) == ""
        async with far.events("/api/v1/events", headers=bearer(last[1])) as events:
            done = await revoke(web, top[0], root[1])
            for sent in theirs:
                assert await refused(web, sent)
            async with asyncio.timeout(FRESH + ON_TOP):
                ended = await anext(events)
                while ended.name != "error":
                    ended = await anext(events)
        assert json.loads(ended.data)["reason"] == "TOKEN_REVOKED"
        for sent in theirs:
            await wait_until_async(partial(refused, far, sent), FRESH + ON_TOP, "it to be known")
    assert await reason(web, bearer(other[1])) == ""
    assert done["descendantsRevoked"] == 4
    login_id = (await found(web, last[0])).maker
    ids = sorted([child[0], grandchild[0], last[0], str(login_id)])
    [line] = await audited(web, "revoke", top[0])
    assert line == {"descendants_revoked": 4, "tokens": ids}
    again = await revoke(web, top[0], root[1])
    assert (again["descendantsRevoked"], again["revokedAt"]) == (0, done["revokedAt"])


async def test_revoking_a_token_keeps_its_maker_and_other_tokens_of_that_maker(web: Web) -> None:
    root = await token(web, auth.ROLE_ADMIN)
    first, second = [await create_token(web, bearer(root[1])) for _ in range(2)]
    assert (await revoke(web, first[0], root[1]))["descendantsRevoked"] == 0
    assert await audited(web, "revoke", first[0]) == [None]
    assert await refused(web, bearer(first[1]))
    assert [await reason(web, bearer(text)) for _, text in (root, second)] == ["", ""]


async def test_a_login_of_a_child_token_ends_with_that_token(web: Web) -> None:
    root = await token(web, auth.ROLE_ADMIN)
    child = await create_token(web, bearer(root[1]))
    login = await log_in(web, child[1])
    assert (await revoke(web, child[0], root[1]))["descendantsRevoked"] == 1
    assert await refused(web, login)


async def test_a_logout_ends_tokens_made_by_the_login_and_is_audited_with_them(web: Web) -> None:
    root = await token(web, auth.ROLE_ADMIN)
    login = await log_in(web, root[1])
    child = await create_token(web, login)
    login_id = (await found(web, child[0])).maker
    await web.ask("POST", "/logout", headers=login, allow_redirects=False)
    assert await refused(web, bearer(child[1]))
    assert await reason(web, bearer(root[1])) == ""
    assert await audited(web, "logout", str(login_id)) == [
        {"descendants_revoked": 1, "tokens": [child[0]]}
    ]


async def test_a_token_that_another_member_just_revoked_creates_no_token(
    web: Web, dsn: str
) -> None:
    """This member doesn't know it yet, and no one would revoke what the token would make."""
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    async with served(dsn, demanded=True) as far:
        who = await web.services.authentication.of_token(top[1])
        await revoke(far, top[0], root[1])
        assert await web.services.authentication.of_token(top[1]) == who
        body = {"name": "bot", "role": "ADMIN"}
        answer = await web.ask("POST", "/api/v1/tokens", json=body, headers=bearer(top[1]))
        assert (answer.status, answer.json["reason"]) == (401, "TOKEN_REVOKED")
        with pytest.raises(UnauthenticatedError):
            await web.services.authentication.of_token(top[1])
    [count] = await run(web, "SELECT count(*) FROM access_tokens WHERE maker IS NOT NULL")
    assert count == (0,)


async def test_a_token_created_during_the_revocation_of_its_maker_ends_or_is_rejected(
    web: Web,
) -> None:
    """Many times: either call may come first."""
    root = await token(web, auth.ROLE_ADMIN)
    for _ in range(10):
        top = await token(web, auth.ROLE_ADMIN)
        body = {"name": "bot", "role": "ADMIN"}
        asked = [
            web.ask("POST", "/api/v1/tokens", json=body, headers=bearer(top[1])) for _ in range(4)
        ]
        answers = await asyncio.gather(asked[0], asked[1], revoke(web, top[0], root[1]), *asked[2:])
        for answer in answers:
            if not isinstance(answer, dict) and answer.status == 200:
                assert await refused(web, bearer(answer.json["secret"]))


async def test_the_list_has_the_maker_of_a_token_and_no_login(web: Web) -> None:
    root = await token(web, auth.ROLE_ADMIN)
    child = await create_token(web, bearer(root[1]))
    by_login = await create_token(web, await log_in(web, root[1]))
    listed = (await web.get("/api/v1/tokens", headers=bearer(root[1]))).json["tokens"]
    login = str((await found(web, by_login[0])).maker)
    assert {one["tokenId"]: one["creatorId"] for one in listed} == {
        root[0]: None,
        child[0]: root[0],
        by_login[0]: login,
    }
    assert login not in {one["tokenId"] for one in listed}


async def test_the_audit_has_no_more_ids_than_it_can_keep(web: Web) -> None:
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    await run(
        web,
        """
        INSERT INTO access_tokens (token_id, digest, name, role, namespaces, created_at, created_by,
            expires_at, revoked_by, maker)
        SELECT gen_random_uuid(), digest, name, role, namespaces, created_at, created_by,
            expires_at, '', token_id FROM access_tokens, generate_series(1, %s) WHERE token_id = %s
        """,
        MOST_NOTED + 1,
        top[0],
    )
    await revoke(web, top[0], root[1])
    [line] = await audited(web, "revoke", top[0])
    assert (line["descendants_revoked"], len(line["tokens"])) == (MOST_NOTED + 1, MOST_NOTED)


async def test_a_maker_is_not_deleted_before_tokens_that_it_created(web: Web) -> None:
    """Else its tokens would be forgotten with it, or have no maker that could still be revoked."""
    root = await token(web, auth.ROLE_ADMIN)
    login = await log_in(web, root[1])
    child = await create_token(web, login)
    ids = "SELECT token_id::text FROM access_tokens"
    over = "UPDATE access_tokens SET expires_at = now() - interval '1 day' WHERE token_id <> %s"
    await run(web, over, root[0])
    await web.store.keep_house()
    login_id = str((await found(web, child[0])).maker)
    assert {each for (each,) in await run(web, ids)} == {root[0], login_id, child[0]}
    long_over = (
        "UPDATE access_tokens SET expires_at = now() - interval '31 days' WHERE token_id = %s"
    )
    await run(web, long_over, child[0])
    await web.store.keep_house()
    assert {each for (each,) in await run(web, ids)} == {root[0]}


async def test_a_token_revoked_by_an_older_member_revokes_its_children_too(web: Web) -> None:
    """An older version marks no other row; revoking the token once more marks all."""
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    child = await create_token(web, bearer(top[1]))
    grandchild = await create_token(web, bearer(child[1]))
    await run(web, "UPDATE access_tokens SET revoked_at = now() WHERE token_id = %s", top[0])
    expire_token_cache(web)
    assert await refused(web, bearer(child[1]))
    assert (await revoke(web, top[0], root[1]))["descendantsRevoked"] == 2
    assert await refused(web, bearer(grandchild[1]))


def with_short_timeout(dsn: str, milliseconds: int) -> str:
    """The same, where each statement ends so soon: as at 3 s, with fewer rows."""
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20statement_timeout%3D{milliseconds}"


async def with_logins(web: Web, token_id: str, count: int, ends: str = "8 h") -> None:
    """So many logins of this token, each a millisecond younger than the one before."""
    statement = """
        INSERT INTO access_tokens (token_id, digest, name, role, namespaces, created_at, created_by,
            expires_at, revoked_by, parent)
        SELECT gen_random_uuid(), digest, name, role, namespaces, now() + n * interval '1 ms',
            created_by, now() + %s::interval, '', token_id
        FROM access_tokens, generate_series(%s, %s) n WHERE token_id = %s
        """
    for first in range(1, count + 1, AT_A_TIME):
        last = min(first + AT_A_TIME - 1, count)
        await run(web, statement, ends, first, last, token_id)


async def test_a_token_is_revoked_with_any_number_of_its_logins(web: Web, dsn: str) -> None:
    """And with what one of them has made, though it isn't among those that are marked."""
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    await with_logins(web, top[0], MANY)
    login = await log_in(web, top[1])
    child = await create_token(web, login)
    grandchild = await create_token(web, bearer(child[1]))
    theirs = [login, *(bearer(text) for _, text in (top, child, grandchild))]
    async with served(with_short_timeout(dsn, 1000), demanded=True) as far:
        assert (await revoke(far, top[0], root[1]))["descendantsRevoked"] == MOST_MARKED
        [line] = await audited(far, "revoke", top[0])
        assert (line["descendants_revoked"], len(line["tokens"])) == (MOST_MARKED, MOST_NOTED)
        expire_token_cache(web)
        for face in (web, far):
            for sent in theirs:
                assert await refused(face, sent)
    of_it = await run(web, "SELECT token_id FROM access_tokens WHERE parent = %s", top[0])
    ids = [AccessTokenId(each) for (each,) in of_it]
    parts = [ids[at : at + 1_000] for at in range(0, len(ids), 1_000)]
    rows = [row for part in parts for row in await web.services.access_tokens.find_all(part)]
    assert (len(rows), [row for row in rows if not row.revoked]) == (MANY + 1, [])


async def test_few_logins_of_a_token_are_found_quickly_beside_very_many_of_another(
    web: Web, dsn: str
) -> None:
    """Statistics take them for as many, and would have each looked for in all of the table."""
    root, top, few = [await token(web, auth.ROLE_ADMIN) for _ in range(3)]
    await with_logins(web, top[0], MANY)
    await with_logins(web, few[0], 5 * MOST_LOGINS)
    await run(web, "ANALYZE access_tokens")
    async with served(with_short_timeout(dsn, 1000), demanded=True) as far:
        assert (await revoke(far, few[0], root[1]))["descendantsRevoked"] == 5 * MOST_LOGINS


async def test_a_token_with_any_revoked_maker_is_rejected_and_listed_as_revoked(web: Web) -> None:
    root, top = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    last = top
    for _ in range(4):
        last = await create_token(web, bearer(last[1]))
    login = await log_in(web, last[1])
    await run(web, "UPDATE access_tokens SET revoked_at = now() WHERE token_id = %s", top[0])
    expire_token_cache(web)
    for sent in (login, bearer(last[1])):
        assert await refused(web, sent)
    body = {"name": "bot", "role": "ADMIN"}
    assert (await web.ask("POST", "/api/v1/tokens", json=body, headers=login)).status == 401
    listed = (await web.get("/api/v1/tokens", headers=bearer(root[1]))).json["tokens"]
    assert [one["tokenId"] for one in listed if not one["revokedAt"]] == [root[0]]


async def test_the_depth_of_makers_of_a_token_is_limited(web: Web) -> None:
    last = await token(web, auth.ROLE_ADMIN)
    for _ in range(MOST_DEEP):
        last = await create_token(web, bearer(last[1]))
    body = {"name": "bot", "role": "ADMIN"}
    for sent in (bearer(last[1]), await log_in(web, last[1])):
        answer = await web.ask("POST", "/api/v1/tokens", json=body, headers=sent)
        assert (answer.status, answer.json["reason"]) == (409, "TOO_MANY_CREATORS")


async def test_a_new_login_ends_the_oldest_of_very_many_of_its_token(web: Web) -> None:
    top, other = await token(web, auth.ROLE_ADMIN), await token(web, auth.ROLE_ADMIN)
    first, of_other = await log_in(web, top[1]), await log_in(web, other[1])
    child = await create_token(web, first)
    first_id = str((await found(web, child[0])).maker)
    await with_logins(web, top[0], MOST_LOGINS - 1)
    assert await reason(web, first) == ""
    newest = await log_in(web, top[1])
    expire_token_cache(web)
    for sent in (first, bearer(child[1])):
        assert await refused(web, sent)
    for sent in (newest, of_other, bearer(top[1])):
        assert await reason(web, sent) == ""
    living = "SELECT count(*) FROM access_tokens WHERE parent = %s AND revoked_at IS NULL"
    assert list(await run(web, living, top[0])) == [(MOST_LOGINS,)]
    assert await audited(web, "logout", first_id) == [None]


async def test_very_many_expired_tokens_are_deleted_in_parts(web: Web, dsn: str) -> None:
    """A maker of as many, too, though deleting it deletes all of them."""
    top, other = await token(web, auth.ROLE_VIEWER), await token(web, auth.ROLE_VIEWER)
    await with_logins(web, top[0], MANY, ends="-31 days")
    over = "UPDATE access_tokens SET expires_at = now() - interval '31 days' WHERE token_id = %s"
    await run(web, over, top[0])
    store = Stores(Database(with_short_timeout(dsn, 400), lanes=1))

    async def forgotten() -> bool:
        await store.keep_house()  # once, unless the machine is busy
        left = await run(web, "SELECT token_id::text FROM access_tokens")
        return [each for (each,) in left] == [other[0]]

    try:
        await wait_until_async(forgotten, WAIT_TIMEOUT, "all but one to be forgotten")
    finally:
        store.close()
