"""The parts of the contract, by what they compute; `warpfit.backends.base` puts them together."""
