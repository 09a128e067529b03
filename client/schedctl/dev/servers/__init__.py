"""Servers of a development cluster: etcd, PostgreSQL, their processes."""
