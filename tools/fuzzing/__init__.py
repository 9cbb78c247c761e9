"""Families of malformed inputs, by name. A family is one function, in a module that is imported
here.

@family("NPZ files")
def npz_files(folder: Path) -> Feed:
    # what all inputs share is made once, in a folder of the family's own
    def feed(rng: Rng) -> None:
        # one input, drawn from rng, is made and fed; what was accepted is put to use
    return feed
"""

from fuzzing import arguments, data_files, model_files, texts
from fuzzing.harness import FAMILIES, Counts, Family, failure_of, feed_inputs, run_family

__all__ = [
    "FAMILIES",
    "Counts",
    "Family",
    "arguments",
    "data_files",
    "failure_of",
    "feed_inputs",
    "model_files",
    "run_family",
    "texts",
]
