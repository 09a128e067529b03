"""From the wire's `Job` to its definition, checked."""
