"""What every stage needs of its process: cluster time, work budgets, loop and dependency health."""
