"""One file per API: its request and its response, declared once for all versions."""
