"""Dishwashing: plates under an economy; seen by numbers, or as clips."""
