"""World-In-Agent: how well the model foresaw its own actions' effects, and what that does to the reward.

Pure functions on text and NumPy arrays: `matching` (m), `reward` (r~, R_pre, R_t, R(tau)) and `grouping` (state
groups). The formulas and their knobs are on the page docs/world-in-agent.md.
"""
