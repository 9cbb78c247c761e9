"""Two classes of a table's rows, of numbers and categories: the example
`structured_data_classification_from_scratch` of Keras.

python examples/structured_data.py heart.csv target [epochs]
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

import warpfit as wf
from warpfit import nn


def main(path: str, target: str, epochs: int = 50) -> float:
    """Train on four fifths of the rows, and return the accuracy on the others."""
    wf.manual_seed(0)
    table = pd.read_csv(path).dropna(subset=[target])
    labels, classes = pd.factorize(table.pop(target), sort=True)
    held_out = np.random.default_rng(1337).permutation(len(table)) < len(table) // 5
    preprocessor = wf.data.TablePreprocessor().fit(table[~held_out])
    x, x_val = (preprocessor.transform(table[rows]) for rows in (~held_out, held_out))
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1))
    history = wf.fit(
        model,
        x,
        labels[~held_out],
        loss="binary_cross_entropy",
        optimizer="adam",
        batch_size=32,
        epochs=epochs,
        validation_data=(x_val, labels[held_out]),
    )
    share = wf.predict(model, x_val[:1], kind="probabilities").item()
    print(f"the first row held out is {classes[1]!r} with a probability of {share:.0%}")
    print(f"validation accuracy {history['val_accuracy'][-1]:.2%}")
    return float(history["val_accuracy"][-1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
