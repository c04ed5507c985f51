"""Mission: a team game of four attackers against three defenders in an arena of 200 × 200 m."""
