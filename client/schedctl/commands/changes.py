"""Changes that objects of several nouns share: one call, `resume`, `delete`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from schedclient import Client, Job, Pool, Value
from schedclient.calls.jobs import Jobs
from schedclient.calls.pools import Pools
from schedctl.output import ValueTable, message, show_data, show_one
from schedctl.session import EXTRA_TIMEOUT, Session, known

V = TypeVar("V", bound=Value)


def change(session: Session, call: Callable[[Client], Awaitable[V]], table: ValueTable[V]) -> V:
    """Make a call and return its answer; print it, but not as a table."""
    changed = session.run(call)
    if not session.tabular:
        show_one(session, changed, table)
    return changed


def resume_one(
    session: Session, name: str, calls: Callable[[Client], Jobs | Pools], table: ValueTable[Any]
) -> None:
    idle = False

    async def both(client: Client) -> Value:
        nonlocal idle
        before: Job | Pool | None
        before = await known(calls(client).get(name, deadline=EXTRA_TIMEOUT))
        idle = before is not None and not before.paused
        return await calls(client).resume(name)

    change(session, both, table)
    message(f"{name} wasn't paused; nothing changed" if idle else f"resumed {name}")


def delete_each(
    session: Session,
    names: Sequence[str],
    delete: Callable[[Client, str], Awaitable[None]],
    what: str = "delete",
    *,
    always: bool = False,
) -> None:
    """Delete objects by their names. `what` and `always` as for `Session.confirm`."""
    for name in names:
        session.confirm(what, name, always=always)

    async def work(client: Client) -> None:
        for name in names:
            await delete(client, name)
            message(f"deleted {name}")

    session.run(work)
    if not session.tabular:
        show_data(session, {"deleted": True})
