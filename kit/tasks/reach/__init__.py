"""Reach: the hand of a real arm goes to a point; seen by numbers, or by cameras."""
