"""Environments: the three-method contract, its checker, the registry, and one folder an environment."""
