"""What a run left: its folder, table of metrics, models, costs, and the comparison of several
runs.
"""
