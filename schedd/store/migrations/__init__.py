"""The schema's history, one module a step, expand before contract. Run by `store.migrate`."""
