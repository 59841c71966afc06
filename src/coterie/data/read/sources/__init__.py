"""The data sets that are known by name, one module for each family."""
