"""Networks for tables: rows of a frame (`preprocessing`), a network with its initial values
(`network`, of `layers`), and its training (`training`).
"""
