"""Where clients run: in this process, over a Ray cluster, or (in `deploy`) at real sites."""
