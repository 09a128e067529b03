"""The decisions of a worker, without I/O, clock or asyncio: time and facts are arguments.

admission     which assignments are accepted, started, rejected, revoked
slot_split    how free slots are split among the members that ask for them
credit        how many slots each member may still use, after a grant was lowered too
lease_trust   until when this worker may trust its lease, and what is killed after
cluster_time  the members' time, bounded from both sides, on this host's boot clock
outcome       how an attempt ended, its reason and its digest
capture       the beginning and the end of a stream of any length
ids           types of ids
"""
