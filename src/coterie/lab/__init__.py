"""The lab: the papers' tables run again, and the arena of all methods. Nothing imports it."""
