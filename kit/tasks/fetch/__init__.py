"""Push, PickAndPlace and Slide: a Fetch arm moves an object to a goal position (Plappert et al., 2018)."""
