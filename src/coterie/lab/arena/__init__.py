"""The arena: all methods on the same federations, and the guide that follows from it."""
