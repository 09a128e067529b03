"""Services of the process: cluster time, work budgets, loop and dependency health."""
