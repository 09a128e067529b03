"""Configuration of daemons: `loader` reads file, environment and flags, `values` parses values."""
