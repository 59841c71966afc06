"""A real federation: one server and its sites as processes that meet over Flower, TLS and node
authentication.
"""
