"""Metrics and statistical tests: scores, gains, fairness, significance, a comparison's answer."""
