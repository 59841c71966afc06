"""The data sets that come with a loader, one family per module."""
