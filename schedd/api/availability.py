"""What a member can say of the cluster, and when it can't.

A member whose lease isn't trusted goes on answering: an old view is better than none. It says so,
and changes nothing that it would have to know the cluster for.
"""

from collections.abc import Sequence

from schedd.api.errors import OutOfTouch
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import SHARDS
from schedd.ports import Cluster

UNTRUSTED = (
    "this member's lease in etcd isn't trusted: it fires nothing, and what it says of members,"
    " leader and shards may be old"
)
TWIN = (
    "another daemon serves under this member's name ({}): this one fires nothing; stop one of them,"
    " or give it another name"
)


def troubles(
    view: ClusterView,
    *,
    trusted: bool,
    owned: int | None,
    workers: int | None,
    twin: str = "",
    failures: Sequence[DependencyFailure] = (),
) -> list[str]:
    """What keeps runs from being on time; nothing where all is well. A pause is none of it: it is
    wanted, and told for itself.

    `owned`: shards that have a live owner; `workers`: those that are there. None: not known yet.
    `twin`: who serves under this member's name. `failures`: of its dependencies.
    """
    found = [str(failure) for failure in failures]
    found += [TWIN.format(twin)] if twin else [] if trusted else [UNTRUSTED]
    if view.member(view.leader) is None:
        found.append("there is no leader")
    if owned is not None and owned < SHARDS:
        found.append(f"{SHARDS - owned} of {SHARDS} shards have no live owner")
    if workers == 0:
        found.append("no worker is there to run anything")
    return found


def need_touch(cluster: Cluster) -> None:
    """Raise OutOfTouch where this member can't know how the cluster stands."""
    if not cluster.trusted():
        raise OutOfTouch(
            "this member's lease in etcd isn't trusted: it doesn't know how the cluster stands",
            reason="NOT_TRUSTED",
            remedy="see `schedctl cluster doctor`; ask again when etcd answers, or another member",
        )
