"""The schema's history, one module a step, expand before contract. Run by `store.schema.migrate`.

Each step names `compatible_from`, the oldest revision whose code works on it.
"""
