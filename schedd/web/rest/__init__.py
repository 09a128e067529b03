"""REST: the calls over HTTP and JSON."""
