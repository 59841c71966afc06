"""What is to be run: the options of an experiment, checked and made into data, networks and
methods.
"""
