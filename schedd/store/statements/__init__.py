"""Parts that statements share: arrays, rows, keys, batched reads, bisection."""
