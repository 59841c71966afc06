"""Steps as machine code: a traced step is written as C, compiled once and found again."""
