"""Partitions: which client gets which rows, and how these are cut into parts."""
