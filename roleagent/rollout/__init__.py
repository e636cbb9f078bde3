"""Rollouts: batched multi-turn episodes of a policy in an environment, ids in and ids out."""
