"""Network: gRPC channels, TLS, HTTP servers, proxies."""
