"""Generation engines: token ids in, logits out, with a key-value cache that lives across turns.

`base.Engine` is the protocol; `factory.make_engine` picks an implementation.
"""
