"""Advantage estimators: one file each. `base` says what an estimator gets and gives, and finds them by name."""
