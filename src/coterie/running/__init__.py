"""Putting a run together and playing it: assembly, the loop over rounds, checkpoints, progress."""
