"""Programs built on warpfit, which nothing below imports: ladder, playground, demo notebook."""
