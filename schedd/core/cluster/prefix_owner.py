"""The cluster that an etcd prefix belongs to: the value of one key under it. Pure.

    cluster    {"cluster_id": …, "database": …, "prefix_id": …}      no lease

The cluster's id is its database's own. Members create the key if it is absent, and reject a prefix
that belongs to another cluster. `prefix_id` distinguishes two prefixes that use one database.
"""

from dataclasses import fields
from typing import Final

from schedd.core.cluster import etcd_values
from schedd.core.cluster.coordination import CoordinationEntry
from schedd.core.cluster.etcd_values import parsed, text, uuid
from schedd.core.ids import Id
from schedkit.records import dataclass

CLUSTER: Final = "cluster"


@dataclass(frozen=True, slots=True)
class PrefixOwner:
    """The cluster that a prefix belongs to. `database`: its address without a password."""

    cluster_id: str
    database: str
    prefix_id: Id


def encode(owner: PrefixOwner) -> bytes:
    return etcd_values.encoded({each.name: getattr(owner, each.name) for each in fields(owner)})


def decode(entry: CoordinationEntry) -> PrefixOwner:
    """Return the owner of the key's value. Raises InvalidValue."""

    def decoded(value: bytes) -> PrefixOwner:
        found = parsed(value)
        names = text(found["cluster_id"]), text(found["database"])
        return PrefixOwner(*names, uuid(found["prefix_id"]))

    return etcd_values.read(entry.key, entry.value, "owner of a prefix", decoded)


def refusal(owner: PrefixOwner, mine: PrefixOwner, prefix: str) -> str:
    """Return why a member with the claim `mine` can't use the prefix; empty: it can."""
    if owner.cluster_id == mine.cluster_id:
        return ""
    return (
        f"etcd prefix {prefix!r} belongs to cluster {owner.cluster_id} (database"
        f" {owner.database}), but this member's postgres.dsn names {mine.database}, which is of"
        f" cluster {mine.cluster_id}. To join the cluster of the prefix, set postgres.dsn to its"
        " database. To run a separate cluster, set etcd.prefix to another prefix. If this database"
        " replaces the other one for good, stop the members of the other cluster, then run"
        " `schedd claim-prefix`"
    )
