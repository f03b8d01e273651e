"""Words that every layer shares: types, errors, settings. Imports nothing but the standard library."""
