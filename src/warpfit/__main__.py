"""``python -m warpfit``."""

from warpfit.cli import main

main()
