"""RandomLayer: a layer that acts in training only, by random numbers of its seed and step."""

from __future__ import annotations

from warpfit.nn.layer import Layer
from warpfit.nn.spec import Call, LayerSpec
from warpfit.random import check_seed, next_seed


class RandomLayer(Layer):
    """A layer whose random numbers `fit` decides, by the run's seed and step, and elsewhere its own
    seed and the number of calls in training. Its spec has a `layer_idx`.
    """

    seed = 0
    num_calls = 0

    def __init__(self, spec: LayerSpec, seed: int | None) -> None:
        super().__init__(spec)
        self.seed = next_seed() if seed is None else check_seed(seed)

    def own_call(self) -> Call:
        step = self.num_calls
        self.num_calls += self.training
        return Call(training=self.training, step=step, seed=self.seed)
