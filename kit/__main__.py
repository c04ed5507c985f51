"""`python -m kit` is the same as `kit`."""

from kit.cli import main

main()
