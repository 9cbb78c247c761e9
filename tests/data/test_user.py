"""The user's own data: .npz, .csv and folders of images, whole and damaged."""

from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from warpfit.data import load_user_data
from warpfit.errors import ConfigError, DataError, FileFormatError

Npz = Callable[..., Path]
Csv = Callable[[str], Path]


@pytest.fixture
def npz(tmp_path: Path) -> Npz:
    def write(**arrays: np.ndarray) -> Path:
        np.savez(tmp_path / "toy.npz", **arrays)
        return tmp_path / "toy.npz"

    return write


@pytest.fixture
def csv(tmp_path: Path) -> Csv:
    def write(text: str) -> Path:
        (tmp_path / "toy.csv").write_text(text, encoding="utf-8")
        return tmp_path / "toy.csv"

    return write


X = np.arange(40, dtype=np.float64).reshape(10, 4)
Y = np.array([0, 1] * 5)


# .npz


def test_npz_with_a_test_set(npz: Npz) -> None:
    data = load_user_data(
        npz(x_train=X, y_train=Y, x_test=X[:3] + 1, y_test=Y[:3], other=Y), test_fraction=0.5
    )
    assert repr(data) == "Dataset(toy: 10 + 3 samples, 4 float64, 2 classes)"
    np.testing.assert_array_equal(data.x_train, X)
    np.testing.assert_array_equal(data.x_test, X[:3] + 1)
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.class_names == ("0", "1")


@pytest.mark.parametrize("key", ["x", "X"])
def test_npz_without_a_test_set_is_split(npz: Npz, key: str) -> None:
    path = npz(**{key: X, "y": Y})
    data = load_user_data(path)
    assert (len(data.x_train), len(data.x_test)) == (8, 2)
    assert sorted(data.y_test) == [0, 1]
    rows = np.concatenate([data.x_train, data.x_test])
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], X)
    other = load_user_data(path, seed=1)
    assert (
        load_user_data(path, seed=1).x_test.tolist()
        == other.x_test.tolist()
        != data.x_test.tolist()
    )
    assert len(load_user_data(path, test_fraction=0).x_test) == 0


@pytest.mark.parametrize(
    ("y", "labels", "names"),
    [
        ([3, 7, 3, -1, 7], [1, 2, 1, 0, 2], ("-1", "3", "7")),
        ([True, False, True, True, False], [1, 0, 1, 1, 0], ("False", "True")),
        (["b", "a", "b", "c", "a"], [1, 0, 1, 2, 0], ("a", "b", "c")),
        ([5, 5, 5, 5, 5], [0, 0, 0, 0, 0], ("5",)),
    ],
)
def test_labels_become_0_to_k_minus_1(
    npz: Npz, y: list[object], labels: list[int], names: tuple[str]
) -> None:
    data = load_user_data(npz(x=X[:5], y=np.array(y)), test_fraction=0)
    assert data.y_train.tolist() == labels
    assert data.class_names == names


def test_classes_are_those_of_both_sets(npz: Npz) -> None:
    data = load_user_data(npz(x_train=X, y_train=Y * 2, x_test=X[:2], y_test=np.array([1, 2])))
    assert data.class_names == ("0", "1", "2")
    assert data.y_test.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(10,), (10, 3)])
def test_float_targets_are_a_regression(npz: Npz, shape: tuple[int, ...]) -> None:
    data = load_user_data(
        npz(x=X, y=np.linspace(0, 1, 10 * np.prod(shape[1:], dtype=int)).reshape(shape))
    )
    assert data.class_names == ()
    assert data.y_train.dtype == np.float32
    assert data.y_train.shape == (8, *shape[1:])


def test_uint8_samples_are_scaled_and_other_numbers_are_not(npz: Npz) -> None:
    pixels = np.arange(10 * 6 * 5, dtype=np.uint8).reshape(10, 6, 5)
    data = load_user_data(npz(x=pixels, y=Y), test_fraction=0)
    np.testing.assert_array_equal(data.x_train, (pixels / 255).astype(np.float32))
    for dtype, found in (
        ("int16", "float32"),
        ("bool", "float32"),
        ("float16", "float32"),
        ("int64", "float64"),
    ):
        data = load_user_data(npz(x=X.astype(dtype), y=Y), test_fraction=0)
        assert data.x_train.dtype == found
        np.testing.assert_array_equal(data.x_train, X.astype(dtype))


def with_value(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 2] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": X, "z": Y},
            "expected arrays x_train, y_train, x_test, y_test, or x and y; found x, z",
        ),
        (
            {"x": X, "y": Y[:4]},
            r"x has shape \(10, 4\) but y has shape \(4,\); expected as many rows",
        ),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:3]},
            r"x_test has shape \(2, 4\) but y_test has shape \(3,\)",
        ),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:2, :3], "y_test": Y[:2]},
            r"test samples have \(3,\)",
        ),
        (
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y / 2},
            r"y_train is int64 of shape \(10,\) but y_test is float64 of shape \(10,\); expected "
            r"the same kind",
        ),
        (
            {"x": X[:, 0], "y": Y},
            r"must have a row per sample, so at least two dimensions; got shape \(10,\)",
        ),
        ({"x": X, "y": np.array(3)}, "expected as many rows"),
        ({"x": X[:0], "y": Y[:0]}, "x has no rows"),
        ({"x": with_value(-np.inf), "y": Y}, "x has -inf in row 3, column 2"),
        (
            {"x": with_value(1e300).reshape(10, 2, 2), "y": Y},
            r"x has inf in row 3, column \(1, 0\)",
        ),
        (
            {"x": X, "y": with_value(1e300)[:, 2]},
            r"y has 1e\+300 in row 3; expected a finite float32",
        ),
        (
            {"x": with_value(np.nan).reshape(10, 2, 2), "y": Y},
            r"x has nan in row 3, column \(1, 0\)",
        ),
        ({"x": X, "y": with_value(np.nan)[:, 2]}, "y has nan in row 3; expected a finite"),
        ({"x": X.astype(str), "y": Y}, "x must be numbers, got <U"),
        ({"x": X, "y": Y[:, None]}, r"y must be integers, .* got int64 of shape \(10, 1\)"),
        ({"x": X, "y": Y * 1j}, "y must be integers, .* got complex128"),
    ],
)
def test_npz_whose_arrays_cannot_be_used(
    npz: Npz, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = npz(**arrays)
    with pytest.raises(DataError, match=message) as error:
        load_user_data(path)
    assert str(path) in str(error.value) or "toy: " in str(error.value)


def test_one_row_is_trained_on(npz: Npz) -> None:
    data = load_user_data(npz(x=X[:1], y=Y[:1]))
    assert (len(data.x_train), len(data.x_test)) == (1, 0)


def test_damaged_npz_files(npz: Npz) -> None:
    path = npz(x=X, y=Y)
    content = path.read_bytes()
    for damaged, message in (
        (b"", "it is empty"),
        (b"x,y\n1,2\n", "not a zip archive"),
        (content[: len(content) // 2], "not a zip archive"),
        (content[:100] + b"\xff" * 20 + content[120:], "no .npz file of plain arrays"),
        (content.replace(b"PK\x01\x02", b"PK\xff\xff"), "no .npz file of plain arrays"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=message) as error:
            load_user_data(path)
        assert str(path) in str(error.value)


def npy(shape: str, descr: str = "'<f8'", body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """Return a .npy file with this header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + body


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy("(10**12,)"), "no .npz file of plain arrays"),
        (
            npy("(1000000000000, 8)"),
            "expected 64000000000[0-9]+ bytes in x.npy, as its header says, found",
        ),
        (npy("(3, 2)", body=bytes(40)), "as its header says, found"),
        (npy("(3, 2)", body=bytes(56)), "as its header says, found"),
        (npy("(-3, -2)", body=bytes(48)), "no .npz file of plain arrays"),
        (npy("(3, 'a')", body=bytes(48)), "no .npz file of plain arrays"),
        (npy("(3, 2)", descr="'O'", body=bytes(48)), "x.npy holds Python objects"),
        (npy("(3, 2)", descr="'<f7'", body=bytes(48)), "no .npz file of plain arrays"),
        (npy("(3, 2)", body=bytes(48), version=b"\3\0"), "expected version 1.0 or 2.0 of x.npy"),
        (npy("(0, 2" + "0" * 40 + ")"), "no .npz file of plain arrays"),
        (npy("(3, 2") + bytes(48), "no .npz file of plain arrays"),
        (b"\x93NUMPY", "no .npz file of plain arrays"),
    ],
)
def test_npz_headers_that_lie(npz: Npz, member: bytes, message: str, method: int) -> None:
    path = npz(y=Y)
    with zipfile.ZipFile(path, "a", method) as archive:
        archive.writestr("x.npy", member)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message):
            load_user_data(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_npz_directories_that_lie(npz: Npz) -> None:
    path = npz(y=Y)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member := npy("(1000000000, 1)", body=bytes(80)))
    content = bytearray(path.read_bytes())
    size = len(member).to_bytes(4, "little")
    place = content.rindex(size, content.rindex(b"PK\1\2"))
    content[place : place + 4] = (len(member) - 80 + 8 * 10**9 & 0xFFFFFFFF).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"x\.npy is not packed as NumPy does it"):
        load_user_data(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", npy("(3, 2)", body=bytes(48)))
    with pytest.raises(FileFormatError, match=r"x\.npy is not packed as NumPy does it"):
        load_user_data(path)


def test_npz_larger_than_the_memory(npz: Npz, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_array(*args: object, **settings: object) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr("warpfit.data.npz.npy.read_array", read_array)
    with pytest.raises(
        DataError, match="too large for this machine's memory: Unable to allocate 3 TiB"
    ):
        load_user_data(npz(x=X, y=Y))


def test_npz_in_fortran_order_and_compressed(npz: Npz, tmp_path: Path) -> None:
    plain = load_user_data(npz(x=X, y=Y))
    np.savez_compressed(tmp_path / "toy.npz", x=np.asfortranarray(X), y=Y)
    np.testing.assert_array_equal(load_user_data(tmp_path / "toy.npz").x_train, plain.x_train)
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((1000, 50)), y=np.arange(1000) % 2)
    assert load_user_data(tmp_path / "zeros.npz").x_train.shape == (800, 50)


def test_npz_never_runs_code(npz: Npz, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "owned",)  # type: ignore[return-value]

    path = npz(x=np.array([Evil()], dtype=object), y=Y[:1])
    with pytest.raises(FileFormatError, match="plain arrays"):
        load_user_data(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", pickle.dumps(Evil()))
    with pytest.raises(DataError, match="found none"):
        load_user_data(path)
    assert not (tmp_path / "owned").exists()


# .csv


def test_csv_with_text_labels(csv: Csv) -> None:
    path = csv("width, height ,species\n1,2.5,b\n-3,4e2,a\n\n5,6,b\n")
    data = load_user_data(path, test_fraction=0)
    assert repr(data) == "Dataset(toy: 3 + 0 samples, 2 columns, 2 classes)"
    assert list(data.x_train.columns) == ["width", "height"]
    np.testing.assert_array_equal(data.x_train, [[1, 2.5], [-3, 400], [5, 6]])
    assert data.y_train.tolist() == [1, 0, 1]
    assert data.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("header", "label_column", "index"),
    [
        ("a,b,c", None, 2),
        ("a,Label,c", None, 1),
        ("target,b,c", None, 0),
        ("y,class,c", None, 1),
        ("x,y,z", None, 1),
        ("label,b,c", "b", 1),
        (" a ,b,c", "a", 0),
    ],
)
def test_csv_label_column(csv: Csv, header: str, label_column: str | None, index: int) -> None:
    path = csv(f"{header}\n10,20,30\n")
    data = load_user_data(path, label_column=label_column)
    assert data.class_names == (str(10 * index + 10),)
    assert data.x_train.to_numpy().tolist() == [
        [v for i, v in enumerate((10, 20, 30)) if i != index]
    ]
    assert data.label_column == header.split(",")[index].strip()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["3", "10", " 7"], ("3", "7", "10")),
        (["3", "10", "x"], ("10", "3", "x")),
        (["nan", "inf", "none"], ("inf", "nan", "none")),
        (["0.5", "1", "2e3"], ()),
        (["1.0", "2.0", "1.0"], ()),
    ],
)
def test_csv_labels_are_integers_numbers_or_text(
    csv: Csv, labels: list[str], names: tuple[str, ...]
) -> None:
    data = load_user_data(
        csv("a,y\n" + "".join(f"1,{label}\n" for label in labels)), test_fraction=0
    )
    assert data.class_names == names
    assert data.y_train.dtype == (np.int64 if names else np.float32)


def test_csv_from_a_spreadsheet(csv: Csv) -> None:
    data = load_user_data(
        csv('\ufeff"a","b","label"\r\n"1","2","x, y"\r\n"3","4","z"\r\n'), test_fraction=0
    )
    assert data.class_names == ("x, y", "z")
    assert data.x_train.to_numpy().tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", FileFormatError, "is empty; expected a row per sample"),
        ("\n\n", FileFormatError, "is empty; expected a row per sample"),
        ("a,y\n", DataError, "has a header but no rows"),
        ("a\n1\n", DataError, "has one column, 'a'; expected features and a label"),
        (
            "y,a\n0,1\n" + "1,2\n" * 20 + "0,four\n",
            DataError,
            "row 22, column 'a' is 'four'; expected a number",
        ),
        ("a,a,y\n1,2,0\n", DataError, "has 2 columns called 'a'; expected one"),
        ("a,y\n1,0\n2\n", DataError, "row 2 has 1 cells; expected 2 as in the first row"),
        ("y,a\n0,1\n1\n", DataError, "row 2 has 1 cells; expected 2 as in the first row"),
        ("a,y\n1,0\n2,1,3\n", DataError, "Expected 2 fields in line 3, saw 3"),
        ("a,y\n1,0,5\n2,1,3\n", DataError, "no readable .csv file: Length of header or names"),
        (
            "a,b,y\n1,2,0\n3,inf,1\n",
            DataError,
            "row 2, column 'b' is .*inf.*; expected a finite number",
        ),
        ("a,y\n1,0.5\n2,nan\n", DataError, "row 2, column 'y' is nan; expected a finite number"),
        (
            "a,y\n1,0.5\n2,1e99\n",
            DataError,
            "column 'y' has 1e\\+99 in row 1; expected a finite float32",
        ),
        ("a,y\n1,0\n2, \n", DataError, "row 2, column 'y' is empty; expected a label"),
    ],
)
def test_csv_faults_are_named_by_row_and_column(
    csv: Csv, text: str, error: type[DataError], message: str
) -> None:
    path = csv(text)
    with pytest.raises(error, match=message) as raised:
        load_user_data(path)
    assert str(path) in str(raised.value)


def test_csv_that_is_no_text(csv: Csv, tmp_path: Path) -> None:
    path = csv("")
    for content in (
        b"a,y\n\xff\xfe\x00,1\n",
        b"a,y\n1,2\n\xff\xfe,2\n",
        b"a,y\n" + b"1" * 200_000 + b",2\n",
    ):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"no readable .csv file|expected UTF-8 text"):
            load_user_data(path)


def test_csv_without_the_label_column(csv: Csv) -> None:
    with pytest.raises(ConfigError, match="has no column 'z'; its columns are a, y"):
        load_user_data(csv("a,y\n1,2\n"), label_column="z")


# A folder of images


def save(path: Path, color: object, mode: str = "L", size: tuple[int, int] = (5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)  # type: ignore[arg-type]


def test_gray_images(tmp_path: Path) -> None:
    folder = tmp_path / "digits.v1"
    for index in range(5):
        save(folder / "nine" / f"{index}.png", 10 * index)
        save(folder / "one" / f"{index}.PNG", 255)
    (folder / "nine" / "notes.txt").write_text("not an image")
    (folder / ".hidden").mkdir()
    data = load_user_data(folder)
    assert repr(data) == "Dataset(digits.v1: 8 + 2 samples, 4×5 float32, 2 classes)"
    assert data.class_names == ("nine", "one")
    assert sorted(data.y_test) == [0, 1]
    assert np.all(data.x_train[data.y_train == 1] == 1)
    shades = np.concatenate([data.x_train, data.x_test])[
        np.concatenate([data.y_train, data.y_test]) == 0
    ]
    np.testing.assert_array_equal(
        np.unique(shades), (np.arange(0, 50, 10) / 255).astype(np.float32)
    )


@pytest.mark.parametrize(("mode", "color"), [("RGB", (255, 0, 51)), ("RGBA", (255, 0, 51, 0))])
def test_colour_images_with_gray_ones_among_them(
    tmp_path: Path, mode: str, color: tuple[int, ...]
) -> None:
    save(tmp_path / "a" / "1.png", color, mode)
    save(tmp_path / "b" / "1.png", 51)
    data = load_user_data(tmp_path, test_fraction=0)
    assert data.x_train.shape == (2, 4, 5, 3)
    np.testing.assert_allclose(data.x_train[:, 0, 0], [[1, 0, 0.2], [0.2, 0.2, 0.2]], rtol=1e-6)


def test_palettes_and_bitmaps(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.gif", 1, "P")
    assert load_user_data(tmp_path).x_train.shape == (1, 4, 5, 3)
    (tmp_path / "a" / "1.gif").unlink()
    save(tmp_path / "a" / "1.png", 1, "1")
    np.testing.assert_array_equal(load_user_data(tmp_path).x_train, np.ones((1, 4, 5)))


def test_train_and_test_folders(tmp_path: Path) -> None:
    for part, name, color in (("train", "b", 255), ("train", "a", 0), ("test", "b", 51)):
        save(tmp_path / part / name / "1.png", color)
    data = load_user_data(tmp_path)
    assert data.class_names == ("a", "b")
    assert data.y_train.tolist() == [0, 1]
    assert data.y_test.tolist() == [1]
    np.testing.assert_allclose(data.x_test, 0.2, rtol=1e-6)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no sub-folders; expected one per class"):
        load_user_data(tmp_path)
    save(tmp_path / "a" / "1.png", 0)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"/b has no images; expected files ending in .png, .jpg"):
        load_user_data(tmp_path)
    save(tmp_path / "b" / "1.png", 1000, mode="I;16")
    with pytest.raises(
        DataError, match=r"b/1.png has pixels of mode I.*; expected 8 bits per channel"
    ):
        load_user_data(tmp_path)


def test_damaged_images(tmp_path: Path) -> None:
    path = tmp_path / "a" / "1.png"
    save(path, (1, 2, 3), "RGB", (200, 200))
    content = path.read_bytes()
    flipped = content[:45] + b"\xff" * 10 + content[55:]
    for damaged in (
        b"",
        b"text",
        content[:60],
        flipped,
        content.replace(b"\0\0\0\rIHDR", b"\0\0\0\1IHDR"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=f"{path} is no readable image"):
            load_user_data(tmp_path)


# All of them


def test_paths_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DataError, match=r"nothing.npz does not exist; expected an .npz file, a .csv file or"
    ):
        load_user_data(tmp_path / "nothing.npz")
    (tmp_path / "data.txt").write_text("a,b\n1,2\n")
    with pytest.raises(
        DataError, match=r"is neither an .npz file, a .csv file nor a folder of images"
    ):
        load_user_data(tmp_path / "data.txt")
    with pytest.raises(
        ConfigError, match=r"label_column names a column of a .csv file; .*data.txt is none"
    ):
        load_user_data(tmp_path / "data.txt", label_column="a")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*data.csv: Permission denied"):
        load_user_data(tmp_path / "data.csv")


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_fractions_that_are_none(npz: Npz, fraction: float) -> None:
    with pytest.raises(ConfigError, match=r"test_fraction must be in \[0, 1\), got"):
        load_user_data(npz(x=X, y=Y), test_fraction=fraction)


def test_home_is_expanded(npz: Npz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(npz(x=X, y=Y).parent))
    assert load_user_data("~/toy.npz").name == "toy"
