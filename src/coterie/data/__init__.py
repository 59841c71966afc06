"""Data sets, partitions and federations."""
