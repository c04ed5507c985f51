"""Dishwashing: a sponge cleans plates for money; with vector observations or video clips."""
