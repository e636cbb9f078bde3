"""The one LLM that plays both roles: turn format, tokens, sampling, loading, engines.

Nothing heavy is imported here: `turns` is pure Python, the other modules import torch or transformers when they
are themselves imported.
"""
