"""What only trying can tell, or what follows from this machine: sizes, room in memory, speed."""
