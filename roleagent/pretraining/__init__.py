"""Supervised warm start of a small policy on expert play, in both of its roles."""
