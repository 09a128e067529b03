"""User calls: a module for each noun, a function for each call.

    calls        the table of all calls; rpc/ and web/ serve it
    definitions  checks of job definitions
    views        stored records as API messages
    errors       the errors of calls; rpc/ and web/ turn them into statuses

A call checks its request, makes the change and its audit line in one transaction, and notifies the
owners.
"""
