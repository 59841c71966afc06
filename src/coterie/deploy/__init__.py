"""A deployment: one server and its sites as processes that meet over Flower, TLS and node
authentication.
"""
