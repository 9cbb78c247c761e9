"""Programs for tables, each fitted to splits: ours, pytabkit's networks, and boosted trees as their
makers' defaults have them, with 1,000 trees of which the best number on the validation rows counts;
scikit-learn's stop early, by the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from table_variants import bag, constant_rate, network, repeated, without_embeddings
from warpfit.backends.cuda.runtime import why_unavailable

__all__ = ["PROGRAMS", "Program", "missing"]

TREES = 1_000
# TabM's authors and TabArena have this decay, and so has ours; pytabkit's default is none.
TABM_DECAY = 0.0003

# From a split, its seed and a number of epochs, None for the program's own, to a fitted model.
Fit = Callable[[Any, int, int | None], Any]


@dataclass(frozen=True)
class Program:
    """A program, by how it is fitted.

    Attributes
    ----------
    fit : function
        Of one split; of several at once, from a list of splits to a model. If it trains several
        networks, the model's ``..._ensemble`` methods return what each of them predicts.
    package : str
        That it needs.
    needs_gpu : bool
        Whether it takes one.
    is_at_once : bool
        Whether it is fitted to all splits in one call.
    networks : int
        That it trains for each split, whose mean score counts.
    """

    fit: Callable[..., Any]
    package: str = "warpfit"
    needs_gpu: bool = False
    is_at_once: bool = False
    networks: int = 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _pytabkit(name: str, device: str, split: Any, seed: int, **settings: Any) -> Any:
    module = __import__("pytabkit")
    kind = getattr(module, f"{name}_{'Classifier' if split.num_classes else 'Regressor'}")
    known = {name: value for name, value in settings.items() if value is not None}
    return kind(random_state=seed, device=device, n_threads=_cores(), **known)


def pytabkit(name: str, device: str, **settings: Any) -> Fit:
    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        model = _pytabkit(name, device, split, seed, n_epochs=epochs, **settings)
        return model.fit(split.x, split.y, X_val=split.x_val, y_val=split.y_val)

    return fit


def pytabkit_at_once(splits: Sequence[Any], seed: int, epochs: int | None) -> Any:
    """Train a RealMLP for each split, all of them vectorised: their matrices are stacked."""
    device = "cuda" if has_gpu() else "cpu"
    model = _pytabkit("RealMLP_TD", device, splits[0], seed, n_epochs=epochs, n_cv=len(splits))
    return model.fit(*splits[0].known, val_idxs=np.stack([split.val for split in splits]))


def lightgbm(split: Any, seed: int, epochs: int | None) -> Any:
    import lightgbm as lgb

    kind = lgb.LGBMClassifier if split.num_classes else lgb.LGBMRegressor
    model = kind(n_estimators=TREES, n_jobs=_cores(), random_state=seed, verbose=-1)
    # It stops no training, and lets the best number of trees predict.
    best = lgb.early_stopping(TREES, verbose=False)
    return model.fit(split.x, split.y, eval_set=[(split.x_val, split.y_val)], callbacks=[best])


def xgboost(split: Any, seed: int, epochs: int | None, device: str = "cpu") -> Any:
    import xgboost as xgb

    kind = xgb.XGBClassifier if split.num_classes else xgb.XGBRegressor
    model = kind(
        n_estimators=TREES,
        n_jobs=_cores(),
        random_state=seed,
        enable_categorical=True,
        early_stopping_rounds=TREES,
        device=device,
    )
    return model.fit(split.x, split.y, eval_set=[(split.x_val, split.y_val)], verbose=False)


def catboost(split: Any, seed: int, epochs: int | None, device: str = "CPU") -> Any:
    import catboost as cb

    kind = cb.CatBoostClassifier if split.num_classes else cb.CatBoostRegressor
    model = kind(
        n_estimators=TREES,
        thread_count=_cores(),
        random_seed=seed,
        verbose=False,
        allow_writing_files=False,
        task_type=device,
        cat_features=split.categories,
    )
    return model.fit(split.x, split.y, eval_set=(split.x_val, split.y_val), use_best_model=True)


def hist_gradient_boosting(split: Any, seed: int, epochs: int | None) -> Any:
    from sklearn import ensemble

    end = "Classifier" if split.num_classes else "Regressor"
    kind = getattr(ensemble, f"HistGradientBoosting{end}")
    model = kind(
        max_iter=TREES,
        random_state=seed,
        categorical_features="from_dtype",
        early_stopping=True,
    )
    return model.fit(split.x, split.y, X_val=split.x_val, y_val=split.y_val)


PROGRAMS = {
    "warpfit realmlp": Program(network()),
    "warpfit realmlp cpu": Program(network(device="cpu")),
    "warpfit realmlp bag of 8": Program(bag(8)),
    "warpfit tabm": Program(network("tabm")),
    "warpfit realmlp four times": Program(repeated(4), networks=4),
    "warpfit tabm four times": Program(repeated(4, "tabm"), networks=4),
    "warpfit realmlp bfloat16": Program(network(precision="bfloat16"), needs_gpu=True),
    "warpfit realmlp float32": Program(network(precision="float32"), needs_gpu=True),
    "warpfit realmlp no embeddings": Program(without_embeddings),
    "warpfit realmlp constant rate": Program(constant_rate),
    "pytabkit realmlp": Program(pytabkit("RealMLP_TD", "cuda"), "pytabkit", needs_gpu=True),
    "pytabkit realmlp at once": Program(pytabkit_at_once, "pytabkit", is_at_once=True),
    "pytabkit realmlp cpu": Program(pytabkit("RealMLP_TD", "cpu"), "pytabkit"),
    "pytabkit tabm": Program(
        pytabkit("TabM_D", "cuda", weight_decay=TABM_DECAY), "pytabkit", needs_gpu=True
    ),
    "lightgbm": Program(lightgbm, "lightgbm"),
    "xgboost": Program(xgboost, "xgboost"),
    "xgboost gpu": Program(lambda *rest: xgboost(*rest, device="cuda"), "xgboost", needs_gpu=True),
    "catboost": Program(catboost, "catboost"),
    "catboost gpu": Program(
        lambda *rest: catboost(*rest, device="GPU"), "catboost", needs_gpu=True
    ),
    "scikit-learn hist": Program(hist_gradient_boosting, "sklearn"),
}


def has_gpu() -> bool:
    return why_unavailable() is None


def missing(name: str) -> str | None:
    """Return why a program cannot run here, or None."""
    program = PROGRAMS[name]
    if find_spec(program.package) is None:
        return f"{program.package} is not installed"
    if program.needs_gpu and not has_gpu():
        return "there is no GPU"
    return None
