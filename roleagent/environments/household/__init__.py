"""Household: generated homes in ALFWorld's words, with an expert and scripted failures."""
