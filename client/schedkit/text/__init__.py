"""Values that people write: durations, sizes, rates, names, JSON."""
