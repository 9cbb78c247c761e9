"""Settings: what they check, what follows from what, and their files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from warpfit.errors import ConfigError
from warpfit.training import settings
from warpfit.training.settings import (
    TrainSettings,
    default_folder,
    merged_settings,
    own_folder,
    parse_hidden,
    read_settings,
)


@pytest.mark.parametrize(
    ("text", "widths"),
    [("256", (256,)), ("256,128", (256, 128)), (" 8 , 4 ", (8, 4)), ("None", ())],
)
def test_hidden_from_text(text: str, widths: tuple[int, ...]) -> None:
    assert parse_hidden(text) == widths


@pytest.mark.parametrize("text", ["", "256,", "x", "1.5"])
def test_hidden_from_other_text(text: str) -> None:
    with pytest.raises(ConfigError, match="256,128, or none"):
        parse_hidden(text)


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "epochs"),
    [
        (60_000, 64, 5),
        (1438, 64, 44),
        (150, 64, 100),
        (1438, 1, 5),
        (12_800, 64, 5),
        (12_736, 64, 6),
    ],
)
def test_small_data_get_more_epochs(num_rows: int, batch_size: int, epochs: int) -> None:
    settings = TrainSettings(batch_size=batch_size).resolved(num_rows=num_rows, has_classes=True)
    assert settings.epochs == epochs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0, "hidden": (256,)}),
        ({"model": "cnn"}, {"hidden": (128,)}),
        ({"optimizer": "adam"}, {"lr": 0.001, "momentum": None, "weight_decay": 0.0}),
        ({"optimizer": "adamw"}, {"weight_decay": 0.01}),
        ({"optimizer": "rmsprop"}, {"momentum": 0.0}),
        ({"lr": 0.0, "momentum": 0.0, "hidden": (), "epochs": 7}, {}),
    ],
)
def test_what_is_open_follows_from_the_rest(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings = TrainSettings(**given).resolved(num_rows=100, has_classes=True)
    for name, value in {**given, **expected}.items():
        assert getattr(settings, name) == value


def test_loss_follows_from_the_targets() -> None:
    settings = TrainSettings()
    assert settings.resolved(num_rows=1, has_classes=True).loss == "cross_entropy"
    assert settings.resolved(num_rows=1, has_classes=False).loss == "mse"
    with pytest.raises(ConfigError, match="loss for float targets, got 'cross_entropy'"):
        TrainSettings(loss="cross_entropy").resolved(num_rows=1, has_classes=False)


@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(),
        TrainSettings(data='C:\\my "data" é', hidden=(), nesterov=True, lr=1e-05, seed=2**64 - 1),
        TrainSettings(optimizer="adam", clip_norm=0.1, schedule="step").resolved(
            num_rows=9, has_classes=False
        ),
    ],
)
def test_written_settings_read_back(settings: TrainSettings, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml(), encoding="utf-8")
    assert TrainSettings(**read_settings(path)) == settings


def test_where_results_go_is_not_recorded() -> None:
    assert {"out", "quiet"}.isdisjoint(
        tomllib.loads(TrainSettings(out="here", quiet=True).to_toml())
    )


@pytest.mark.parametrize("hidden", ["[8, 4]", "'8,4'", '"8, 4"'])
def test_hidden_in_a_file_may_be_text_or_a_list(hidden: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"hidden = {hidden}")
    assert read_settings(path) == {"hidden": (8, 4)}
    path.write_text("hidden = 8")
    assert read_settings(path) == {"hidden": (8,)}


def test_devices_in_a_file_may_be_text_or_a_list(tmp_path: Path) -> None:
    for device in ('"cpu,cpu"', '["cpu", "cpu"]'):
        (tmp_path / "config.toml").write_text(f"device = {device}")
        assert merged_settings({}, tmp_path / "config.toml").devices == ["cpu", "cpu"]


def test_resume_takes_the_settings_beside_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.touch()
    (tmp_path / "config.toml").write_text("batch_size = 9\nepochs = 2")
    (tmp_path / "other.toml").write_text("batch_size = 8")
    for resume in (tmp_path, checkpoint):
        settings = merged_settings({"resume": str(resume), "epochs": 3, "lr": None})
        assert (settings.batch_size, settings.epochs, settings.lr) == (9, 3, None)
    assert merged_settings({"resume": str(tmp_path)}, tmp_path / "other.toml").batch_size == 8


def test_only_what_decides_by_validation_needs_rows_of_its_own() -> None:
    assert TrainSettings(early_stopping=1).watches_validation
    assert TrainSettings(schedule="reduce_on_plateau").watches_validation
    assert not TrainSettings().watches_validation


def test_every_run_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, taken = default_folder(), list[Path]()

    def named_at_once() -> Path:
        found = taken[-1] if len(taken) == 1 else default_folder()
        taken.append(found)
        return found

    monkeypatch.setattr(settings, "default_folder", named_at_once)
    with own_folder(None) as one, own_folder(None) as other:
        assert one != other
        assert taken == [one, one, other]
        Path(other, "result").touch()
    assert list(tmp_path.rglob("*/*")) == [tmp_path / other, tmp_path / other / "result"]
    assert name.parent == Path("runs")
    with own_folder("asked for") as folder:
        assert folder == "asked for"


@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    if is_link:
        runs.symlink_to(tmp_path / "not mounted")
    else:
        runs.touch()
    message = "cannot make the folder runs: File exists"
    with pytest.raises(ConfigError, match=message), own_folder(None):
        pytest.fail("it was made")


def test_processes_are_for_calls_of_fit() -> None:
    with pytest.raises(
        ConfigError, match="'cuda:all' for every GPU, got 'processes', which is for calls"
    ):
        TrainSettings(device="processes")
