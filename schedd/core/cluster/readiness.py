"""Reasons why a member isn't ready to serve, as `/readyz` and the metrics name them."""

from enum import StrEnum


class Unready(StrEnum):
    LEAVING = "leaving"
    DUPLICATE_NAME = "duplicate_name"
    ANOTHER_CLUSTER = "another_cluster"
    NO_TENURE = "no_tenure"
    UNTRUSTED = "untrusted"
    ETCD = "etcd"
    DATABASE = "database"
    NO_LEADER = "no_leader"
