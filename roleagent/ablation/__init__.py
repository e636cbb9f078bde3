"""Ablations: variants of one configuration times seeds, and what the differences between them are worth.

`variants` says what differs, `plan` which runs that makes, `curves` and `results` read them off at equal episodes and
at equal time, `statistics` tells chance from gain, `figure` and `report` show it. Running them is in `flows.ablation`.
"""
