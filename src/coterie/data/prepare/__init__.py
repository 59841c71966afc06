"""Preparation: how cells and pixels become inputs of a network."""
