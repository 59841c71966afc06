"""The papers: their tables and figures, run again and judged."""
