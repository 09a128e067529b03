"""gRPC: user calls, worker streams, calls between members.

    calls    every method of the table in api/, one generic handler each
    attach   a worker's stream; frames translates between wire and values
    peers    wake-ups for the owners of shards: batched, never awaited
    status   errors on the wire: status, reason, remedy, fields

Invariant: this package translates and forwards to api/ and dispatch/; it decides nothing.
"""
