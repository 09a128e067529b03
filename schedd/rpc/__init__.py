"""gRPC: the user calls, the workers' streams, nudges between members.

    calls    every method of the table in api/, one generic handler each
    attach   a worker's stream; frames translates between wire and values
    peers    hints to the owners of shards: sent together, never waited for
    status   how a refusal travels: status, reason, remedy, fields

Nothing here decides anything: it translates, and hands on to api/ and owner/.
"""
