"""``python -m positionwise``: the command line."""

from positionwise.cli import main

main()
