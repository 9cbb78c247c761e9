"""Programs built on warpfit: the ladder, the playground, and the demo notebook. Nothing below
imports them.
"""
