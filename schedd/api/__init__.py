"""User calls: one module a noun, one function a call: check, do in one transaction, tell, audit.

    calls        the one table of all calls; rpc/ and web/ serve it
    definitions  the wire's Job ⇄ what decisions need, with every check on the way
    unbuilt      what the wire has and this version hasn't: refused by name
    views        stored records as people see them
    errors       how a call is refused

The faces turn a refusal into a status of theirs; a call knows neither.
"""
