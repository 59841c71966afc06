"""What everything rests on: models as points, the contract of a method, trees, files, random
streams.
"""
