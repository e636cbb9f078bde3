"""Comparisons with other implementations of the same thing, and what they answered, recorded."""
