"""Attached workers: sessions, slots, demand."""
