"""What may speak against a member's serving, in a word each."""

from enum import StrEnum


class Unready(StrEnum):
    """A reason not to be ready."""

    LEAVING = "leaving"
    TWIN = "twin"
    ANOTHER_CLUSTER = "another_cluster"
    NO_TENURE = "no_tenure"
    UNTRUSTED = "untrusted"
    ETCD = "etcd"
    DATABASE = "database"
    NO_LEADER = "no_leader"
