"""From a data set or a table of one's own to a federation: read, partitioned over clients, cut and
scaled.
"""
