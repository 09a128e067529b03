"""What a member can say of the cluster, and when it can't.

A member whose lease isn't trusted goes on answering: an old view is better than none. It says so,
and changes nothing that it would have to know the cluster for.
"""

from schedd.api.errors import OutOfTouch
from schedd.core.membership import ClusterView
from schedd.ports import Cluster

UNTRUSTED = (
    "this member's lease in etcd isn't trusted: it fires nothing, and what it says of members,"
    " leader and shards may be old"
)


def troubles(cluster: Cluster, view: ClusterView, orphans: int, shards: int) -> list[str]:
    """What keeps runs from being on time; nothing where all is well.

    `orphans`: of `shards`, those without a live owner.
    """
    found = [] if cluster.trusted() else [UNTRUSTED]
    if view.member(view.leader) is None:
        found.append("there is no leader")
    if orphans:
        found.append(f"{orphans} of {shards} shards have no live owner")
    if not view.workers:
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
