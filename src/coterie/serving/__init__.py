"""From a run to models in use: cards, files that run elsewhere, predictions, an HTTP service."""
