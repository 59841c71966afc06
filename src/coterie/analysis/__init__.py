"""Numbers about numbers: scores, gains, fairness, significance and the answer of a comparison."""
