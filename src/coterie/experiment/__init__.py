"""What is to be run: the words of an experiment, checked and made into data, networks and
methods.
"""
