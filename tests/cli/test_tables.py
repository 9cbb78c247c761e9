"""Tables of scikit-learn's, written as files, by ``warpfit train --data FILE`` with all defaults;
and what follows.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline

import warpfit as wf
from support.commands import Invoke, run_main
from warpfit.errors import DataWarning


def diabetes() -> pd.DataFrame:
    return load_diabetes(as_frame=True, scaled=False).frame


def iris() -> pd.DataFrame:
    found = load_iris(as_frame=True)
    return found.frame.assign(target=found.target_names[found.frame["target"]])


def train(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    """Train into the folder run, anew, and return how the model does on the test set."""
    shutil.rmtree("run", ignore_errors=True)
    outcome = invoke("train", *arguments, "--out", "run", "--quiet")
    assert outcome.code == 0, outcome
    return json.loads((Path("run") / "history.json").read_text())["test"]


def test_diabetes(invoke: Invoke) -> None:
    diabetes().to_csv("table.csv", index=False)
    test = train(invoke, "--data", "table.csv")
    assert test["r2"] >= 0.4
    assert test["mae"] < 50


@pytest.mark.slow
def test_diabetes_split_otherwise_does_as_well_as_ridge_regression(invoke: Invoke) -> None:
    ours, ridge = [], []
    for seed in range(4):
        diabetes().sample(frac=1, random_state=seed).to_csv("table.csv", index=False)
        ours.append(train(invoke, "--data", "table.csv", "--seed", seed)["r2"])
        data = wf.data.load_user_data("table.csv")
        best = make_pipeline(wf.data.TablePreprocessor(), RidgeCV([1.0, 10.0, 100.0])).fit(
            data.x_train, data.y_train
        )
        ridge.append(best.score(data.x_test, data.y_test))
    assert np.mean(ours) > 0.4
    assert np.mean(ours) > np.mean(ridge) - 0.05


@pytest.mark.slow
def test_an_income_like_column_does_no_harm(invoke: Invoke) -> None:
    incomes = np.random.default_rng(0).lognormal(11, 1, 442).round()
    diabetes().assign(income=incomes).to_csv("table.csv", index=False)
    assert train(invoke, "--data", "table.csv", "--label-column", "target")["r2"] >= 0.4


@pytest.mark.slow
def test_breast_cancer(invoke: Invoke) -> None:
    cancer = load_breast_cancer(as_frame=True)
    cancer.frame.to_csv("table.csv", index=False)
    np.savez("table.npz", x=cancer.data.to_numpy(), y=cancer.target.to_numpy())
    for name in ("table.csv", "table.npz"):
        assert train(invoke, "--data", name)["accuracy"] >= 0.96


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("options", [{"index": False}, {"index": False, "header": False}, {}])
def test_iris(invoke: Invoke, options: dict[str, Any]) -> None:
    iris().to_csv("table.csv", **options)
    assert train(invoke, "--data", "table.csv")["accuracy"] >= 0.9


def houses(num_rows: int = 400) -> pd.DataFrame:
    """Return a table with every kind of column, and a price that follows from most of them."""
    rng = np.random.default_rng(0)
    area, town = rng.uniform(20, 200, num_rows), rng.choice(["Bonn", "Köln", "Ulm"], num_rows)
    rooms, garden = rng.integers(1, 6, num_rows), rng.random(num_rows) < 0.3
    price = (
        3000 * area
        + 2e4 * rooms
        + 5e4 * garden
        + np.select([town == "Köln", town == "Ulm"], [2e5, -5e4])
    )
    area[::9] = np.nan
    owner = [f"owner {i}" for i in range(num_rows)]
    columns = {"owner": owner, "area": area, "town": town, "rooms": rooms, "garden": garden}
    return pd.DataFrame({**columns, "price": price.round().astype(int)})


@pytest.fixture(scope="module")
def of_houses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train on half of the houses, and return the folder and the printed text."""
    folder = tmp_path_factory.mktemp("houses")
    houses()[:300].to_csv(folder / "houses.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outcome = run_main("train", "--data", "houses.csv", "--out", "run")
    assert outcome.code == 0, outcome
    return folder, outcome.out


@pytest.fixture
def priced(of_houses: tuple[Path, str], elsewhere: None) -> str:
    """Copy what was trained on houses here, and return the printed text."""
    folder, out = of_houses
    shutil.copytree(folder, Path.cwd(), dirs_exist_ok=True)
    return out


def test_says_what_it_did_with_each_column(priced: str) -> None:
    lines = priced.splitlines()
    for line in (
        "labels: the column 'price'",
        "standardised: area",
        "one column a category: town (3), rooms (5), garden (2)",
        "left out, as nearly all their texts differ: owner",
    ):
        assert line in lines
    assert any(
        line.startswith("a regression: targets are integers with 300 distinct values")
        for line in lines
    )
    assert any(line.startswith("missing cells, filled and marked: area (") for line in lines)
    assert any(line.startswith("targets standardised: mean 4") for line in lines)
    assert any(line.startswith("test loss (standardised targets)") for line in lines)


def test_columns_are_learned_from_the_rows_to_train_on(priced: str) -> None:
    data = wf.data.load_user_data("houses.csv")
    table = wf.data.TablePreprocessor().fit(data.x_train, data.y_train)
    assert wf.load_metadata("run/model.safetensors")["table"] == json.loads(
        json.dumps(table.to_dict())
    )


def test_the_model_is_what_its_parts_are_in_python(invoke: Invoke, priced: str) -> None:
    data = wf.data.load_user_data("houses.csv")
    table = wf.data.TablePreprocessor.from_dict(wf.load_metadata("run/model.safetensors")["table"])
    with pytest.warns(
        DataWarning, match=r"model.safetensors was trained on prepared data: .* wf.load_trained"
    ):
        model = wf.load("run/model.safetensors")
    predicted = table.inverse_targets(wf.predict(model, table.transform(data.x_test)).ravel())
    values = wf.load_trained("run/model.safetensors").predictions(data.x_test).ravel()
    np.testing.assert_allclose(values, predicted, rtol=1e-6)
    report = json.loads(invoke("evaluate", "run/model.safetensors", "--json").out)
    assert report["mae"] == pytest.approx(np.abs(predicted - data.y_test).mean(), rel=1e-5)
    residual = ((predicted - data.y_test) ** 2).mean()
    assert report["r2"] == pytest.approx(1 - residual / data.y_test.var(), rel=1e-5)
    assert report["rmse"] == pytest.approx(residual**0.5, rel=1e-5)
    assert report["r2"] > 0.85
    shown = invoke("evaluate", "run/model.safetensors").out
    assert "R² " in shown
    assert "mean absolute error" in shown


def predicted(path: str) -> tuple[list[str], list[list[str]]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows


def test_predictions_are_in_the_units_of_the_targets(invoke: Invoke, priced: str) -> None:
    new = houses()[300:]
    new.drop(columns="price").iloc[:, ::-1].to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv")
    assert outcome.code == 0, outcome
    assert "100 rows, 1 columns: new-predictions.csv" in outcome.out
    header, rows = predicted("new-predictions.csv")
    assert header == ["prediction"]
    errors = np.array(rows, float).ravel() - new["price"]
    assert 1 - (errors**2).mean() / new["price"].var() > 0.85
    new.assign(more=1).to_csv("labelled.csv", index=False)
    outcome = invoke(
        "predict", "run/model.safetensors", "labelled.csv", "--out", "there.csv", "--json"
    )
    report = json.loads(outcome.out)
    assert report["notes"] == ["left out: 'more', which the model was not trained on"]
    np.testing.assert_allclose(
        np.array(predicted("there.csv")[1], float), np.array(rows, float), rtol=1e-6
    )
    assert report["predictions"][0]["prediction"] == pytest.approx(float(rows[0][0]))


def test_cells_like_none_to_train_on_are_counted(invoke: Invoke, priced: str) -> None:
    new = houses()[300:].astype({"rooms": float})
    new.loc[new.index[:7], "town"] = "Bern"
    new.loc[new.index[2:5], "rooms"] = None
    new.to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv", "--json")
    assert json.loads(outcome.out)["notes"] == [
        "column 'town': cells of no known category: 7, such as 'Bern'",
        "column 'rooms': cells of no known category: 3, such as '(missing)'",
    ]


def test_missing_numbers_where_there_were_none_are_counted(invoke: Invoke) -> None:
    frame = iris()
    frame.to_csv("table.csv", index=False)
    train(invoke, "--data", "table.csv", "--epochs", "1")
    frame.iloc[3:6, 1] = None
    frame.to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv", "--json")
    name = frame.columns[1]
    assert json.loads(outcome.out)["notes"] == [
        f"column {name!r}: missing cells, filled: 3; there was none to train on"
    ]


def test_a_table_for_a_model_of_arrays(invoke: Invoke, misuse: Invoke) -> None:
    np.savez("images.npz", x=np.zeros((20, 4, 4), np.uint8), y=np.arange(20) % 2)
    train(invoke, "--data", "images.npz", "--epochs", "1")
    iris().to_csv("table.csv", index=False)
    message = (
        "table.csv is a table, but the model was trained on samples of shape (4, 4) "
        "without names of columns"
    )
    assert message in misuse("predict", "run/model.safetensors", "table.csv").err


def test_a_table_that_lacks_columns(invoke: Invoke, misuse: Invoke, priced: str) -> None:
    houses()[["area", "garden", "price", "owner"]].to_csv("less.csv", index=False)
    message = "less.csv lacks 'town', 'rooms'; expected the columns that the model was trained on"
    assert message in misuse("predict", "run/model.safetensors", "less.csv").err
    assert (
        "missing are 'town', 'rooms'"
        in misuse("evaluate", "run/model.safetensors", "--data", "less.csv").err
    )


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("options", [{"index": False}, {"index": False, "header": False}, {}])
def test_classes_are_predicted_by_name(invoke: Invoke, options: dict[str, Any]) -> None:
    frame = iris().sample(frac=1, random_state=0)
    frame[:100].to_csv("table.csv", **options)
    train(invoke, "--data", "table.csv")
    new = frame[100:].reset_index(drop=True)
    new.to_csv("labelled.csv", **options)
    new.drop(columns="target").to_csv("bare.csv", **options)
    for name in ("labelled", "bare"):
        outcome = invoke("predict", "run/model.safetensors", f"{name}.csv")
        assert outcome.code == 0, outcome
    header, rows = predicted("labelled-predictions.csv")
    assert predicted("bare-predictions.csv") == (header, rows)
    assert header == ["prediction", *(f"probability {name}" for name in load_iris().target_names)]
    assert np.mean([row[0] == name for row, name in zip(rows, new["target"], strict=True)]) > 0.9
    np.testing.assert_allclose(np.array([row[1:] for row in rows], float).sum(axis=1), 1, rtol=1e-5)


def test_arrays_are_predicted(invoke: Invoke) -> None:
    cancer = load_breast_cancer()
    np.savez("table.npz", x=cancer.data[:400], y=cancer.target[:400])
    train(invoke, "--data", "table.npz")
    np.savez("new.npz", X=cancer.data[400:])
    assert invoke("predict", "run/model.safetensors", "new.npz").code == 0
    _, rows = predicted("new-predictions.csv")
    assert (
        np.mean(
            [row[0] == str(label) for row, label in zip(rows, cancer.target[400:], strict=True)]
        )
        > 0.93
    )


def test_evaluate_gives_recall_and_precision(invoke: Invoke) -> None:
    from sklearn.metrics import precision_score, recall_score

    iris().to_csv("table.csv", index=False)
    train(invoke, "--data", "table.csv")
    iris().to_csv("all.csv", index=False)
    assert invoke("predict", "run/model.safetensors", "all.csv").code == 0
    names = [row[0] for row in predicted("all-predictions.csv")[1]]
    report = json.loads(invoke("evaluate", "run/model.safetensors", "--split", "all", "--json").out)
    for score in report["classes"]:
        only = {"labels": [score["name"]], "average": "macro"}
        assert score["recall"] == pytest.approx(recall_score(iris()["target"], names, **only))
        assert score["precision"] == pytest.approx(precision_score(iris()["target"], names, **only))
        assert score["num_rows"] == 50


@pytest.mark.filterwarnings("default::warpfit.errors.DataWarning")
def test_it_can_be_told_not_to(invoke: Invoke) -> None:
    diabetes().to_csv("table.csv", index=False)
    outcome = invoke(
        "train",
        "--data",
        "table.csv",
        "--no-preprocess",
        "--lr",
        "1e-6",
        "--epochs",
        "2",
        "--out",
        "run",
    )
    assert outcome.code == 0, outcome
    assert "standardised" not in outcome.out
    assert (
        "x has columns of very different or large scale: column 4 reaches 301, column 1 2"
        in outcome.err
    )
    card = wf.load_metadata("run/model.safetensors")
    assert card["table"] is None
    assert invoke("predict", "run/model.safetensors", "table.csv").code == 0
    Path("mine.toml").write_text('data = "table.csv"\npreprocess = false\nlr = 1e-6\nepochs = 2\n')
    assert "standardised" not in invoke("train", "--config", "mine.toml", "--out", "again").out


def test_the_written_settings_repeat_the_run(invoke: Invoke, priced: str) -> None:
    assert invoke("train", "--config", "run/config.toml", "--out", "again").code == 0
    first, again = (
        wf.load_trained(f"{run}/model.safetensors").model.state_dict() for run in ("run", "again")
    )
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])


def test_the_task_can_be_told(invoke: Invoke) -> None:
    frame = load_breast_cancer(as_frame=True).frame
    frame.to_csv("table.csv", index=False)
    assert "r2" in train(invoke, "--data", "table.csv", "--task", "regression")
    assert invoke("evaluate", "run/model.safetensors", "--json").code == 0
    frame.assign(target=frame["target"].astype(float)).to_csv("table.csv", index=False)
    assert "r2" in train(invoke, "--data", "table.csv")
    assert train(invoke, "--data", "table.csv", "--task", "classification")["accuracy"] > 0.95


def test_a_sweep_prepares_tables_as_a_training_does(invoke: Invoke) -> None:
    houses().to_csv("houses.csv", index=False)
    flags = (
        "--data",
        "houses.csv",
        "--lr",
        "0.01,0.05",
        "--epochs",
        "30",
        "--jobs",
        "1",
        "--device",
        "cpu",
    )
    outcome = invoke("sweep", *flags, "--out", "results")
    assert outcome.code == 0, outcome
    assert "one column a category: town (3), rooms (5), garden (2)" in outcome.out
    assert "test R²" in outcome.out
    report = json.loads(invoke("evaluate", "results/model.safetensors", "--json").out)
    assert report["r2"] > 0.9
    assert invoke("predict", "results/model.safetensors", "houses.csv").code == 0


def test_targets_of_images_are_standardised(invoke: Invoke) -> None:
    x = np.random.default_rng(0).uniform(size=(200, 4, 4)).astype(np.float32)
    np.savez("images.npz", x=x, y=1000 * x.mean(axis=(1, 2)) + 5000)
    assert train(invoke, "--data", "images.npz")["r2"] > 0.9
    np.savez("new.npz", x=x[:5])
    assert invoke("predict", "run/model.safetensors", "new.npz").code == 0
    values = np.array(predicted("new-predictions.csv")[1], float).ravel()
    np.testing.assert_allclose(values, 1000 * x[:5].mean(axis=(1, 2)) + 5000, atol=100)


def test_a_loss_of_counts_gets_counts(invoke: Invoke) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    np.savez("counts.npz", x=3 * x, y=rng.poisson(np.exp(x[:, 0])).astype(float))
    assert train(invoke, "--data", "counts.npz", "--loss", "poisson", "--lr", "0.01")["mae"] < 1.5
    assert wf.load_metadata("run/model.safetensors")["table"]["targets"] is None
    assert invoke("predict", "run/model.safetensors", "counts.npz").code == 0
    assert np.array(predicted("counts-predictions.csv")[1], float).min() >= 0


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("part", ["columns", "targets", "numbers"])
def test_a_forged_table_in_a_model_file(misuse: Invoke, priced: str, part: str) -> None:
    model, card = (
        wf.load_trained("run/model.safetensors").model,
        wf.load_metadata("run/model.safetensors"),
    )
    card["table"][part] = {"mean": [1.0], "scale": [0.0]}
    wf.save(model, "run/forged.safetensors", metadata=card)
    assert (
        "state of a TablePreprocessor"
        in misuse("predict", "run/forged.safetensors", "houses.csv").err
    )


@pytest.mark.slow
def test_photos_of_mixed_sizes(invoke: Invoke) -> None:
    rng = np.random.default_rng(0)
    for index in range(40):
        pixels = rng.integers(0, 60, rng.integers(10, 30, 2))
        half = len(pixels) // 2
        pixels[slice(None, half) if index % 2 else slice(half, None)] += 150
        path = Path("photos") / ("above" if index % 2 else "below") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    outcome = invoke("train", "--data", "photos", "--image-size", "8,6", "--out", "run")
    assert outcome.code == 0, outcome
    assert "(height×width) are resized to 8×6" in outcome.out
    assert json.loads(Path("run/history.json").read_text())["test"]["accuracy"] == 1
    assert json.loads(invoke("evaluate", "run/model.safetensors", "--json").out)["accuracy"] == 1
    report = json.loads(invoke("predict", "run/model.safetensors", "photos/above", "--json").out)
    assert {found["label"] for found in report["predictions"]} == {"above"}
    assert invoke("train", "--config", "run/config.toml", "--out", "again").code == 0
    assert wf.load("again/model.safetensors")[0].weight.shape == (48, 256)
