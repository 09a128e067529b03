"""Executors of assignments: one for each kind of action.

shell    a program in its own session (child_process, scratch)
http     one request, to a checked address (targets)
grpc     one unary call, to a checked address (targets), of any method (reflection)
python   a registered handler, on an event loop, in a thread, or in its own process (handlers)
"""
