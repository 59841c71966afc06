"""Several methods and seeds on the same data: the plan, tuning on validation data, the runs."""
