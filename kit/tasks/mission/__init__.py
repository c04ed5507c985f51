"""Mission: a game of four against three on a field of 200 m."""
