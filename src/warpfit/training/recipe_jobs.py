"""``warpfit train --recipe``: a published network with its optimizer and its data augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from warpfit.backends import open_ahead
from warpfit.errors import ConfigError, ShapeError
from warpfit.random import manual_seed
from warpfit.training import airbench
from warpfit.training.callbacks import Callback
from warpfit.training.jobs import Job, Outcome, model_card, opened
from warpfit.training.settings import TrainSettings
from warpfit.training.trained import TrainedModel

# Pixels a side that three poolings by 2 and one by 3 leave one of.
SIDES = (25, 48)


@dataclass(frozen=True)
class RecipeJob(Job):
    """A training by a recipe, which is tested by several views of each image as well."""

    @property
    def title(self) -> str:
        return f"{self.dataset.name}, recipe {self.settings.recipe}"

    @property
    def how(self) -> str:
        settings = self.settings
        return (
            f"recipe {settings.recipe}; epochs {settings.epochs}, batch size "
            f"{settings.batch_size}, seed {settings.seed}"
        )

    def run(
        self, folder: str | Path, callbacks: Sequence[Callback] = (), *, verbose: bool = True
    ) -> Outcome:
        """Train, test, and write everything into a folder, as any job."""
        outcome = super().run(folder, callbacks, verbose=verbose)
        if outcome.test is None:
            return outcome
        images = self.trained.card.inputs(self.dataset.x_test, "float32")
        outputs = airbench.outputs_of_views(self.trained.model, images)
        accuracy = float(np.mean(outputs.argmax(axis=1) == self.dataset.y_test))
        note = f"test accuracy {accuracy:.2%} by the mean over mirrored and moved views"
        return replace(outcome, notes=[*outcome.notes, note])


def prepare(settings: TrainSettings) -> RecipeJob:
    """Return the job that settings with a recipe describe: data loaded, model made, nothing
    written.

    Raises
    ------
    ConfigError, DataError, ShapeError
        If settings and data do not go together, or the data cannot be had.
    """
    settings = replace(settings, data=settings.data or "cifar10")
    open_ahead(settings.device)
    settings, dataset = opened(settings)
    if dataset.num_classes < 2:
        raise ConfigError(
            f"expected data with classes for the recipe {settings.recipe}, got {dataset.name}"
        )
    shape = dataset.x_train.shape[1:]
    if len(shape) not in (2, 3) or not all(SIDES[0] <= side <= SIDES[1] for side in shape[:2]):
        raise ShapeError(
            f"expected images of {SIDES[0]} to {SIDES[1]} pixels a side for the recipe "
            f"{settings.recipe}, got samples of shape {shape}"
        )
    batch_size = min(settings.batch_size or airbench.BATCH_SIZE, len(dataset.x_train))
    settings = replace(settings, epochs=settings.epochs or airbench.EPOCHS, batch_size=batch_size)
    card = model_card(replace(settings, recipe=None, model="cnn"), dataset)
    images = card.inputs(dataset.x_train, "float32")
    manual_seed(settings.seed)
    steps = -(-len(images) // batch_size)
    model = airbench.network(images.shape[3], dataset.num_classes, steps)
    airbench.whiten(model, images)
    dataset = replace(dataset, x_train=airbench.mirrored_half(dataset.x_train, settings.seed))
    validation = None
    if len(dataset.x_test):
        validation = (card.inputs(dataset.x_test), card.targets(dataset.y_test))
    trained, optimizer = TrainedModel(model, card), airbench.optimizer_of(model, batch_size)
    return RecipeJob(settings, dataset, validation, trained, optimizer, airbench.LOSS)
