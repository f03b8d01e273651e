"""Tables of SQLite and PostgreSQL as targets of flows and as streams of rows."""
