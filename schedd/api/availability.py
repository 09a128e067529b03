"""Problems of the cluster, as a member reports them.

A member whose lease isn't trusted still answers reads, with a warning: an old view is better than
none. It rejects changes that need a current view of the cluster.
"""

from collections.abc import Sequence

from schedd.api.errors import MemberUnavailableError
from schedd.cluster.observer import Observer
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import SHARDS

UNTRUSTED = (
    "this member's lease in etcd isn't trusted, because it may have expired: the member fires no"
    " jobs, and its view of members, leader and shards may be outdated"
)
DUPLICATE_NAME = (
    "another daemon uses this member's name ({}): this member fires no jobs; stop one of the two,"
    " or give it another name"
)


def problems(
    view: ClusterView,
    *,
    trusted: bool,
    owned: int | None,
    workers: int | None,
    duplicate: str = "",
    failures: Sequence[DependencyFailure] = (),
) -> list[str]:
    """Return the problems that may delay runs. A pause isn't one: it is intended, and shown
    separately.

    `owned`: shards with a live owner; `workers`: connected workers; None: not known yet.
    `duplicate`: the address of another daemon with this member's name.
    """
    found = [str(failure) for failure in failures]
    found += [DUPLICATE_NAME.format(duplicate)] if duplicate else [] if trusted else [UNTRUSTED]
    if view.member(view.leader) is None:
        found.append("the cluster has no leader")
    if owned is not None and owned < SHARDS:
        found.append(f"{SHARDS - owned} of {SHARDS} shards have no live owner")
    if workers == 0:
        found.append("no worker is running")
    return found


def require_trusted(cluster: Observer) -> None:
    """Raise MemberUnavailableError if this member's view of the cluster may be old."""
    if not cluster.trusted():
        raise MemberUnavailableError(
            "this member may have lost its lease in etcd: its view of the cluster may be outdated",
            reason="NOT_TRUSTED",
            remedy="see `schedctl cluster doctor`; call again when etcd answers, or call another"
            " member",
        )
