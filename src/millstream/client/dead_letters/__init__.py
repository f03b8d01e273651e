"""Dead letters from outside: read them, and redrive them exactly once."""
