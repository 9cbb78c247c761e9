"""Programs for tables, each fitted to a split: pytabkit's networks, and boosted trees as their
makers' defaults have them, with 1,000 trees of which the best number on the validation rows counts;
scikit-learn's stop early, by the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

__all__ = ["PROGRAMS", "missing"]

TREES = 1_000


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def warpfit(method: str = "realmlp", device: str = "auto", **settings: Any) -> Callable[..., Any]:
    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        import warpfit as wf

        kind = wf.TabularClassifier if split.num_classes else wf.TabularRegressor
        own = {**settings, **({} if epochs is None else {"n_epochs": epochs})}
        model = kind(method=method, device=device, random_state=seed, **own)
        if settings.get("n_folds"):
            import pandas as pd

            rows = pd.concat([split.x, split.x_val])
            return model.fit(rows, np.concatenate([split.y, split.y_val]))
        return model.fit(split.x, split.y, X_val=split.x_val, y_val=split.y_val)

    return fit


def pytabkit(name: str, device: str) -> Callable[..., Any]:
    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        module = __import__("pytabkit")
        kind = getattr(module, f"{name}_{'Classifier' if split.num_classes else 'Regressor'}")
        settings = {} if epochs is None else {"n_epochs": epochs}
        model = kind(random_state=seed, device=device, n_threads=_cores(), **settings)
        return model.fit(split.x, split.y, X_val=split.x_val, y_val=split.y_val)

    return fit


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


# By name, with the package that it needs, and whether that takes a GPU.
PROGRAMS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "warpfit realmlp": (warpfit(), "warpfit", False),
    "warpfit realmlp cpu": (warpfit(device="cpu"), "warpfit", False),
    "warpfit realmlp bag of 8": (warpfit(n_folds=8), "warpfit", False),
    "warpfit tabm": (warpfit("tabm"), "warpfit", False),
    "pytabkit realmlp": (pytabkit("RealMLP_TD", "cuda"), "pytabkit", True),
    "pytabkit realmlp cpu": (pytabkit("RealMLP_TD", "cpu"), "pytabkit", False),
    "pytabkit tabm": (pytabkit("TabM_D", "cuda"), "pytabkit", True),
    "lightgbm": (lightgbm, "lightgbm", False),
    "xgboost": (xgboost, "xgboost", False),
    "xgboost gpu": (lambda *rest: xgboost(*rest, device="cuda"), "xgboost", True),
    "catboost": (catboost, "catboost", False),
    "catboost gpu": (lambda *rest: catboost(*rest, device="GPU"), "catboost", True),
    "scikit-learn hist": (hist_gradient_boosting, "sklearn", False),
}


def missing(program: str) -> str | None:
    """Return why a program cannot run here, or None."""
    _, package, needs_gpu = PROGRAMS[program]
    if find_spec(package) is None:
        return f"{package} is not installed"
    if needs_gpu and not os.path.exists("/proc/driver/nvidia/version"):
        return "there is no GPU"
    return None
