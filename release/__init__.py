"""The package as users get it: built, installed into clean environments, and measured."""
