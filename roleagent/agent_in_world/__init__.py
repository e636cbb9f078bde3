"""Agent-In-World: the model, prompted as the environment, reads its own failures and reshapes what is practised.

diagnosis -> failure bank -> retrieval -> curriculum (the method, section 2). Nothing heavy is imported here.
"""
