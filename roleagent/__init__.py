"""Role-Agent: one model plays both the agent and its environment, and both get better.

The package is a plain library: it knows nothing of Prefect. `flows/` and `tasks/` at the project's root
orchestrate it. Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
