"""Shared by the handlers of several APIs, by subject."""
