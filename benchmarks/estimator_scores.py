"""Do fitted estimators score as scikit-learn's do?

Both are fitted with the same random state on the same rows, with shuffling, whose orders differ,
and scored on rows held out: 20 seeds, of which each decides split, initial values and orders, on
four data sets. Of the differences of the scores, seed by seed, it prints the mean with its 95 %
interval (Student's t), the p-values of the paired t-test and of Wilcoxon's signed-rank test, both
two-sided, for no difference, and the p-value of the two one-sided t-tests (TOST) for a mean
difference of BOUND or more, which was chosen before anything was measured. Writes
results/estimator_scores.json, where devices not measured stay as they were.

    python benchmarks/estimator_scores.py [--device cpu] [--seeds 20]
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sklearn.neural_network as theirs
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from harness import RESULTS, Options, environment, run_command, write_results
from warpfit import estimators as ours

Array = npt.NDArray[Any]
Rows = tuple[Array, Array]

BOUND = 0.01  # of accuracy or R²
TEST_SHARE = 0.25


def california_like(rows: int = 4_000) -> Rows:
    """Return made-up census blocks (rows, 8) and the logarithms of their house values (rows,).

    Features, as those of the California housing data: median income, house age, rooms and bedrooms
    a household, population, people a household, latitude, longitude. Values rise with income, less
    and less, fall with crowding and with the distance from a slanted coast, peak around two cities,
    depend on age by a curve, and are cut at the top.
    """
    rng = np.random.default_rng(0)
    income = rng.lognormal(1.25, 0.45, rows)
    age = rng.uniform(1, 52, rows)
    rooms = rng.lognormal(1.65, 0.2, rows) + 0.2 * income
    bedrooms = rooms * rng.uniform(0.15, 0.3, rows)
    population = rng.lognormal(7.0, 0.7, rows)
    occupancy = rng.lognormal(1.0, 0.25, rows)
    latitude = rng.uniform(32.5, 42.0, rows)
    from_coast = rng.exponential(1.0, rows)
    longitude = -117.0 - 0.75 * (latitude - 32.5) + from_coast
    cities = ((37.8, -122.4), (34.1, -118.3))
    nearness = sum(
        np.exp(-((latitude - north) ** 2) - (longitude - east) ** 2) for north, east in cities
    )
    value = (
        0.9 * np.log(income)
        - 0.25 * np.log1p(from_coast)
        + 0.6 * nearness
        - 0.3 * np.log(occupancy)
        + 0.15 * np.cos(age / 8)
        + 0.1 * bedrooms / rooms * np.log(population)
        + rng.normal(0, 0.15, rows)
    )
    columns = (income, age, rooms, bedrooms, population, occupancy, latitude, longitude)
    return np.stack(columns, axis=1), np.minimum(value, np.quantile(value, 0.95))


class Case(NamedTuple):
    """An estimator by its name, and rows."""

    kind: str
    load: Callable[[], Rows]


CASES = {
    "digits": Case("MLPClassifier", lambda: load_digits(return_X_y=True)),
    "breast cancer": Case("MLPClassifier", lambda: load_breast_cancer(return_X_y=True)),
    "diabetes": Case("MLPRegressor", lambda: load_diabetes(return_X_y=True)),
    "California-like": Case("MLPRegressor", california_like),
}


def split(case: Case, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return X and y to train on, then X and y to score, with features, and numbers to predict,
    standardised.
    """
    X, y = case.load()
    is_classifier = case.kind == "MLPClassifier"
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=TEST_SHARE, random_state=seed, stratify=y if is_classifier else None
    )
    if not is_classifier:
        mean, deviation = y.mean(), y.std()
        y, y_test = (y - mean) / deviation, (y_test - mean) / deviation
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), y, scaler.transform(X_test), y_test


def scores_of(
    case: Case, seed: int, settings: dict[str, Any], own: dict[str, Any]
) -> tuple[float, float]:
    """Return the scores of our estimator and of scikit-learn's; settings are of both, `own` of ours
    alone.
    """
    X, y, X_test, y_test = split(case, seed)
    fitted = (
        getattr(ours, case.kind)(random_state=seed, **(settings | own)).fit(X, y),
        getattr(theirs, case.kind)(random_state=seed, **settings).fit(X, y),
    )
    own_score, other_score = (float(estimator.score(X_test, y_test)) for estimator in fitted)
    return own_score, other_score


def compared(own: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Return means, the interval of the mean difference, and the p-values of the paired tests."""
    differences = np.subtract(own, other)
    mean, error = differences.mean(), stats.sem(differences)
    freedom = len(differences) - 1
    reach = stats.t.ppf(0.975, freedom) * error
    differs = bool(differences.any())
    return {
        "warpfit_scores": list(own),
        "sklearn_scores": list(other),
        "warpfit_mean": float(np.mean(own)),
        "sklearn_mean": float(np.mean(other)),
        "sklearn_deviation": float(np.std(other, ddof=1)),
        "difference": float(mean),
        "standard_error": float(error),
        "interval": [float(mean - reach), float(mean + reach)],
        "p_t": float(stats.ttest_rel(own, other).pvalue) if differs else 1.0,
        "p_wilcoxon": float(stats.wilcoxon(differences, zero_method="pratt").pvalue)
        if differs
        else 1.0,
        "p_equivalence": float(stats.t.sf((BOUND - abs(mean)) / error, freedom))
        if differs
        else 0.0,
    }


def measure(seeds: int, device: str) -> dict[str, Any]:
    """Return the comparison on each data set, with all parameters at their defaults."""
    rows = {}
    for name, case in CASES.items():
        pairs = [scores_of(case, seed, {}, {"device": device}) for seed in range(seeds)]
        rows[name] = compared(*zip(*pairs, strict=True))
        print(line_of(name, rows[name]), flush=True)
    return rows


def line_of(name: str, row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return (
        f"{name}: warpfit {row['warpfit_mean']:.4f}, scikit-learn {row['sklearn_mean']:.4f} "
        f"(deviation between seeds {row['sklearn_deviation']:.4f}), difference "
        f"{row['difference']:+.4f} ({low:+.4f} to {high:+.4f}); p: t {row['p_t']:.3f}, Wilcoxon "
        f"{row['p_wilcoxon']:.3f}, {BOUND:g} or more {row['p_equivalence']:.2g}"
    )


def kept_devices() -> dict[str, Any]:
    """Return the devices that an older file has."""
    path = RESULTS / "estimator_scores.json"
    kept: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8"))["devices"] if path.exists() else {}
    )
    return kept


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--device", default="cpu", help="of ours")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # runs that end at max_iter
    rows = measure(arguments.seeds, arguments.device)
    measured = {
        "environment": environment(),
        "seeds": arguments.seeds,
        "bound": BOUND,
        "rows": rows,
    }
    devices = kept_devices() | {arguments.device: measured}
    print(f"written to {write_results('estimator_scores', {'devices': devices})}")


if __name__ == "__main__":
    run_command(main)
