"""Results of workers to rows: collect, decide, follow logs."""
