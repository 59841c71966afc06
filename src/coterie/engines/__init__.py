"""Where clients run: all on this machine, over a Ray cluster, or at real sites."""
