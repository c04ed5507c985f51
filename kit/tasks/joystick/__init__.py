"""Joystick: legged robots track a commanded velocity."""
