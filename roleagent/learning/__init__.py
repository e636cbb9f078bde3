"""Learning: from scored trajectories to an update of the policy.

`advantages` holds one estimator a file and `scoring` applies one to a batch; both need NumPy alone. Packing, loss and
learner work on the weights and import torch.
"""
