"""From a data set or a table of one's own to a federation: read, dealt to clients, cut and
scaled.
"""
