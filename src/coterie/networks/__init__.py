"""The networks that clients train, as plain torch modules."""
