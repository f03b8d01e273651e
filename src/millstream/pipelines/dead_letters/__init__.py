"""Dead letters of a pipeline: their writers, their transactions, and rows that targets reject."""
