"""The schema: tables, revisions, privileges, partitions."""
