"""Reach: a Fetch arm moves its hand to a goal position; with vector or image observations."""
