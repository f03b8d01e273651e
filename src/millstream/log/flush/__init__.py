"""Making a log durable: when, how, and in the background."""
