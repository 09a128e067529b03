"""An etcd prefix names its cluster, and other clusters are rejected by that name."""

from __future__ import annotations

import pytest

from schedd.core.cluster.coordination import NO_LEASE, CoordinationEntry, Revision
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.cluster.prefix_owner import PrefixOwner, decode, encode, refusal
from schedd.core.ids import Id
from schedkit.records import replace

OWNER = PrefixOwner("c1", "db1:5432/schedd", Id.from_int(7))


def entry(value: bytes) -> CoordinationEntry:
    return CoordinationEntry("cluster", value, Revision(1), Revision(1), NO_LEASE)


def test_an_owner_survives_encoding() -> None:
    assert decode(entry(encode(OWNER))) == OWNER


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"cluster_id":1}', b"\xff"])
def test_an_invalid_owner_is_unreadable(value: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode(entry(value))


def test_the_own_cluster_is_accepted_and_another_is_rejected_with_name_and_remedy() -> None:
    assert refusal(OWNER, replace(OWNER, prefix_id=Id.from_int(8)), "schedd/") == ""

    refused = refusal(OWNER, PrefixOwner("c2", "db1:5432/other", Id.from_int(8)), "schedd/")

    assert "'schedd/' belongs to cluster c1 (database db1:5432/schedd)" in refused
    assert "postgres.dsn names db1:5432/other, which is of cluster c2" in refused
    assert "To join the cluster of the prefix, set postgres.dsn to its database" in refused
    assert "`schedd claim-prefix`" in refused
