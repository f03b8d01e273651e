"""Settings in requests: what a change would do, carrying it out, and how settings are shown."""
