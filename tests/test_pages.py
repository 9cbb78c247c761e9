"""The examples of a page run as they stand, one after the other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import warpfit as wf
from warpfit.cli.app import app
from warpfit.data import Dataset
from warpfit.losses import Loss
from warpfit.nn.spec import LayerSpec
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.schedules import Schedule
from warpfit.tabular.methods import METHODS
from warpfit.tabular.realmlp import REALMLP

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the layers, losses, optimizers and schedules that pages define."""
    for owner, name in (
        (Loss, "by_name"),
        (OptimizerSpec, "by_kind"),
        (LayerSpec, "by_kind"),
        (Schedule, "by_name"),
    ):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))


def examples(page: str) -> list[str]:
    """Return the code of a page's blocks of Python."""
    return FENCED.findall((ROOT / page).read_text(encoding="utf-8"))


def run_page(page: str) -> dict[str, Any]:
    """Run a page's examples one after the other, and return the names that they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in examples(page):
        exec(compile(code, page, "exec", dont_inherit=True), names)
    return names


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_for_scikit_learns_users(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("docs/scikit-learn.md")
    assert len(examples("docs/scikit-learn.md")) == 13
    assert names["classifier"].score(names["X_test"], names["y_test"]) > 0.95
    assert names["search"].best_score_ > 0.8
    for name in ("single", "dropping", "cosine", "steps", "watched", "exact", "several"):
        assert names[name].score(names["X_test"], names["y_test"]) > 0.85, name
    assert np.median(np.abs(names["robust"].predict(names["patients"]) - names["progress"])) < 0.6
    assert len(names["watched"].validation_scores_) == names["watched"].n_iter_
    printed = capsys.readouterr().out
    assert "layerwise cpu float64 on the CPU there is one engine, layerwise" in printed
    assert str(names["classifier"].loss_) in printed


def digits_of_784_pixels() -> Dataset:
    """Return a few digits in the size of MNIST's."""
    digits = wf.data.load_dataset("digits")
    x = np.pad(digits.x_train, ((0, 0), (10, 10), (10, 10))).reshape(-1, 784)[:600]
    return Dataset(
        "few", x[:500], digits.y_train[:500], x[500:], digits.y_train[500:600], digits.class_names
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_readmes_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = digits_of_784_pixels()
    monkeypatch.setattr(wf.data, "load_dataset", lambda name, flat: few)
    monkeypatch.chdir(tmp_path)
    names = run_page("README.md")
    assert len(examples("README.md")) == 2
    assert (tmp_path / "curves.png").exists()
    assert (tmp_path / "model.safetensors").exists()
    assert "layerwise on the CPU there is one engine, layerwise" in capsys.readouterr().out
    assert names["history"]["loss"][-1] < names["history"]["loss"][0]
    assert names["classifier"].score(names["X"] / 16, names["y"]) > 0.95


def test_the_examples_of_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"n_epochs": 32}  # in place of 256
    method = replace(REALMLP, defaults=lambda *kind: {**REALMLP.defaults(*kind), **short})
    monkeypatch.setitem(METHODS, "realmlp", method)
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/tables.md")
    assert names["model"].score(names["features"], names["test"]["kind"]) > 0.9
    assert "of the test rows are right" in capsys.readouterr().out
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 46
    bag, submission = names["bag"], names["submission"]
    assert len(bag.members_) == 8
    right = submission.idxmax(axis=1) == names["test"]["kind"]
    assert right.mean() > 0.9
    assert len((tmp_path / "submission.csv").read_text().splitlines()) == 46


def test_the_examples_of_what_is_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/extending.md")
    printed = capsys.readouterr().out
    assert "95% after" in printed
    assert max(names["measured"]["val_f1_macro"]) > 0.9
    assert names["measured"]["val_misses"][-1] < 40
    assert names["sweep"].best["score"] > 0.8
    regressor, x = names["regressor"], names["x"]
    below = names["noisy"] < wf.predict(names["upper"], x)[:, 0]
    assert 0.85 < below.mean() < 0.95
    assert regressor.loss == names["LogCosh"](scale=2.0)
    assert np.abs(wf.predict(regressor, x, kind="values") - names["curve"](x)).mean() < 0.3
    assert (tmp_path / "gated.safetensors").exists()
    assert type(names["again"][1]) is names["Gated"]
    assert "True" in printed.splitlines()  # the derivatives are right


@pytest.mark.slow
def test_a_loss_of_ones_own_is_the_same_on_every_device(cuda: str) -> None:
    (code,) = (code for code in examples("docs/extending.md") if "class LogCosh" in code)
    names: dict[str, Any] = {"__name__": "__main__", "np": np, "wf": wf, "losses": wf.losses}
    exec(
        compile(code[: code.index("def curve")], "docs/extending.md", "exec", dont_inherit=True),
        names,
    )
    x = np.random.default_rng(0).uniform(-1, 1, (40, 2)).astype(np.float32)
    curves = []
    for device in ("cpu", cuda):
        layers = wf.nn.Linear(2, 8, seed=0), wf.nn.Tanh(), wf.nn.Linear(8, 1, seed=1)
        model = wf.nn.Sequential(*layers)
        history = wf.fit(
            model,
            x,
            x[:, :1],
            loss=names["LogCosh"](scale=2.0),
            optimizer=wf.optim.Adam(model.parameters(), lr=0.01),
            epochs=2,
            batch_size=16,
            sample_weight=np.linspace(1, 2, 40),
            device=device,
        )
        assert history.plan.engine == "layerwise"
        curves.append(history["loss"])
    np.testing.assert_allclose(*curves, rtol=1e-5)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dataset:
    """In place of MNIST: digits in its size, in a folder for what a page writes."""
    digits = digits_of_784_pixels()
    x_train, x_test = (
        digits.x_train.reshape(-1, 28, 28)[:128],
        digits.x_test.reshape(-1, 28, 28)[:32],
    )
    few = Dataset(
        "few", x_train, digits.y_train[:128], x_test, digits.y_test[:32], digits.class_names
    )
    monkeypatch.setattr(wf.data, "load_dataset", lambda name: few)
    monkeypatch.chdir(tmp_path)
    return few


def other_side(page: str) -> list[str]:
    """Return the code of a page's blocks of Python that need another framework."""
    return re.findall(
        r"^```py\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_port_from_keras(few_images: Dataset, tmp_path: Path) -> None:
    names = run_page("docs/from-keras.md")
    assert wf.load(tmp_path / "mnist.safetensors").loss == names["model"].loss
    assert names["history"]["loss"][-1] < names["history"]["loss"][0]
    # Keras's arrays have these shapes: they fit as they are.
    weights = [
        np.full(array.shape, 0.01, np.float32) for array in names["model"].state_dict().values()
    ]
    assert [array.shape for array in weights[::2]] == [(3, 3, 1, 32), (3, 3, 32, 64), (1600, 10)]
    names["load_keras"](names["model"], weights)
    assert all((array == np.float32(0.01)).all() for array in names["model"].state_dict().values())


def test_the_port_from_pytorch(few_images: Dataset, tmp_path: Path) -> None:
    names = run_page("docs/from-pytorch.md")
    assert names["history"]["loss"][-1] < names["history"]["loss"][0]
    assert (
        wf.load(tmp_path / "mnist.safetensors").num_parameters
        == names["net"].num_parameters
        == 1_199_882
    )


def test_both_sides_of_the_port_from_pytorch_agree(few_images: Dataset) -> None:
    torch = pytest.importorskip("torch")
    training, copying = other_side("docs/from-pytorch.md")
    x, x_test = (torch.tensor(part[:, None]) for part in (few_images.x_train, few_images.x_test))
    y, y_test = torch.tensor(few_images.y_train), torch.tensor(few_images.y_test)
    theirs: dict[str, Any] = {
        "x": x,
        "y": y,
        "x_test": x_test,
        "y_test": y_test,
        "epochs": 1,
        "device": "cpu",
    }
    exec(compile(training, "docs/from-pytorch.md", "exec"), theirs)
    names = run_page("docs/from-pytorch.md")
    names["theirs"] = theirs["net"]
    exec(compile(copying, "docs/from-pytorch.md", "exec"), names)
    with torch.no_grad():
        expected = theirs["net"](x_test).numpy()
    np.testing.assert_allclose(
        wf.predict(names["net"], few_images.x_test[..., None]), expected, atol=1e-4
    )


def test_the_examples_of_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/own-data.md")
    data, predicted = names["data"], names["predicted"]
    assert 1 - np.mean((predicted - data.y_test) ** 2) / data.y_test.var() > 0.4
    assert names["pipeline"].score(data.x_test, data.y_test) > 0.3
    assert wf.evaluate(names["noisy"], names["x"], names["y"]).loss < 0.6
    augmented, pictures = names["augmented"], names["pictures"]
    assert wf.evaluate(augmented, pictures[1000:], names["digits"][1000:]).accuracy > 0.9


def test_the_examples_of_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/watching.md")
    assert (tmp_path / "rates.png").exists()
    assert 1e-4 < names["curve"].suggestion < 0.1
    assert names["history"]["accuracy"][-1] > 0.8
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


NAMED = re.compile(r"(?<![\w./])(wf|nn|optim|losses|autograd)\.([A-Za-z_]\w*)")


@pytest.mark.parametrize(
    "page", ["from-pytorch", "from-keras", "extending", "own-data", "watching", "where"]
)
def test_names_that_pages_give_are_there(page: str) -> None:
    modules = {
        "wf": wf,
        **{name: getattr(wf, name) for name in ("nn", "optim", "losses", "autograd")},
    }
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = [pair for words in re.findall(r"`([^`\n]+)`", text) for pair in NAMED.findall(words)]
    assert named
    assert [
        f"{module}.{name}" for module, name in named if not hasattr(modules[module], name)
    ] == []


def test_what_one_looks_for_is_on_the_page_that_is_named() -> None:
    table = (ROOT / "docs" / "where.md").read_text(encoding="utf-8").partition("|---|")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "](" in line]
    assert len(rows) > 25
    missing = []
    for _, here, pages in rows:
        code = " ".join(re.findall(r"`([^`]+)`", here))
        words = re.findall(r"\.(\w+)|\b(\w+)=|--(\w+)", code)
        for page in re.findall(r"\]\(([^)#]+)", pages):
            text = (ROOT / "docs" / page).read_text(encoding="utf-8")
            found = [next(filter(None, word)) for word in words]
            missing += [(page, word) for word in found if not re.search(rf"\b{word}\b", text)]
    assert missing == []


def test_the_readme_is_a_shop_window() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


COMMANDS: Any = typer.main.get_command(app)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [
    (page.name, line.partition("#")[0].split())
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
    if not language and line.startswith("warpfit ")
]


@pytest.mark.parametrize(
    ("page", "words"), LINES, ids=[f"{page}: {' '.join(words)}" for page, words in LINES]
)
def test_commands_that_pages_name_are_there(page: str, words: list[str]) -> None:
    command = COMMANDS.commands[words[1]]
    if command.context_settings.get("ignore_unknown_options"):  # they are for a script
        return
    options = {
        option
        for parameter in command.params
        for option in parameter.opts + parameter.secondary_opts
    }
    assert {word for word in words if word.startswith("--")} <= options


def test_targets_that_pages_name_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "".join(
        (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "CONTRIBUTING.md")
    )
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {"train", "test", "notebook", "docs"} <= named
    assert [
        name for name in named if not re.search(rf"^{name}(?: [a-z-]+)*:", makefile, re.MULTILINE)
    ] == []


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_of_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("docs/sweep.md")
    assert len(examples("docs/sweep.md")) == 5
    assert len(names["table"]) == 18
    assert abs(names["history"]["loss"][-1] - names["sweep"].records[0]["loss"]) < 1e-5
    assert names["search"].best_score_ > 0.7
    assert "{'stopped': 16, 'done': 2} 9" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_of_optuna(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/optuna.md")
    assert len(examples("docs/optuna.md")) == 5
    assert names["search"].best_score_ > 0.7
    assert names["study"].best_value > 0.85
    assert names["found"].best_value == names["study"].best_value
    printed = capsys.readouterr().out
    assert "{'PRUNED': 24, 'COMPLETE': 3}" in printed
    assert "['COMPLETE', 'COMPLETE', 'COMPLETE', 'COMPLETE']" in printed
    assert (tmp_path / "study.log").exists()
