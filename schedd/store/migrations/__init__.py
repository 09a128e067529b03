"""The schema's history, one module a step, expand before contract. Run by `store.migrate`.

From 0004 on each step names `compatible_from`, the oldest revision whose code works on it.
"""
