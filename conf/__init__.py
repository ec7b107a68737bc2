"""Hydra configuration: one folder per axis, plus recipe, sweep, budget, cluster and tracking."""
