"""How an assignment is carried out: one executor for each kind of action.

shell    a program in a session of its own (process, scratch)
http     one request, to a checked address (targets)
grpc     one unary call, to a checked address (targets), of any method (reflection)
python   a registered handler, on the event loop, in a thread, or in a process of its own (apart)
"""
