"""Parts that statements share: arrays, rows, keys, group commit, bisection."""
