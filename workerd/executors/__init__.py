"""How an assignment is carried out: one executor for each kind of action.

shell    a program in a session of its own (process, scratch)
http     one request, to a checked address (targets)
python   a registered handler, on the event loop or in a thread
"""
