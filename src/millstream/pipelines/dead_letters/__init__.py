"""Dead letters of a pipeline: who writes them, in which transaction, and rows that targets refuse."""
