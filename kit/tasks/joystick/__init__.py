"""Joystick: legged robots follow the velocity that is asked for."""
