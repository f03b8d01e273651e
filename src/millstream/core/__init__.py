"""Types, errors and settings that every layer shares. Imports only the standard library."""
