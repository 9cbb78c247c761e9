"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import secrets
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from threading import current_thread, main_thread
from typing import Any

from warpfit.checks import brief, some
from warpfit.errors import ConfigError, FileFormatError

PathLike = str | os.PathLike[str]


def as_path(name: str, value: Any) -> Path:
    """Return a path of the file system, or raise ConfigError if `value` is none."""
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise ConfigError(f"expected {name} to be a path, got {brief(value)}")
    return Path(value)


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` when the block ends well, and vanishes otherwise.

    A kill at any moment leaves the file that was at `path` before, or the new one whole; so does a
    power failure.

    Raises
    ------
    ConfigError
        If the folder cannot be written to.
    """
    target = as_path("path", path)
    if target.name in ("", ".."):
        raise ConfigError(f"expected the path of a file, got {str(path)!r}")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
        _make_durable(target.parent)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _make_durable(folder: Path) -> None:
    """Have a folder's names written to the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_is_file(path: PathLike, expected: str) -> None:
    """Raise FileFormatError unless there is a file at `path`; `expected` says in words what it
    should be.
    """
    place = as_path("path", path)
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist; expected {expected}") from None
    except OSError as error:
        raise FileFormatError(
            f"cannot read {path}: {error.strerror or error}; expected {expected}"
        ) from error
    if not stat.S_ISREG(mode):
        raise FileFormatError(
            f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no file'}; expected {expected}"
        )


def make_folder(path: PathLike) -> Path:
    """Return the folder `path`, made with its parents where missing, or raise ConfigError."""
    folder = as_path("path", path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write to the folder {folder}: permission denied")
    return folder


def lacking_folders(path: Path) -> list[Path]:
    """Return those of a folder and the ones above it that are to be made, the folder first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for the end of a short block."""
    if current_thread() is not main_thread():
        yield
        return
    pressed: list[tuple[Any, Any]] = []
    before = signal.signal(signal.SIGINT, lambda *given: pressed.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if pressed and callable(before):
            before(*pressed[0])


def remove_empty(folders: Sequence[Path]) -> None:
    """Take folders away, each above the one before, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


class ResultsFolder:
    """A folder that is made when there is something to put into it, and taken away again if nothing
    came.

    Parameters
    ----------
    path : path of the folder

    Attributes
    ----------
    unfinished : Path
        A folder in it, of this run alone, for files that `publish` puts into place together.
    own : set of str
        Names of files of this run that are in place before.
    """

    def __init__(self, path: PathLike) -> None:
        if path == "":
            raise ConfigError("expected out to be the path of a folder, got ''")
        try:
            self.path = as_path("out", path).expanduser()
        except RuntimeError:
            raise ConfigError(f"expected out to be a path, got {brief(path)}") from None
        self.unfinished = self.path / f".unfinished-{secrets.token_hex(4)}"
        self._made: list[Path] = []
        self.own: set[str] = set()
        self._goes_on = self._is_unfinished = False

    def make(self, *, goes_on: bool = False) -> None:
        """Make it, with its parents.

        Raises
        ------
        ConfigError
            If that fails; or if it has files already, lest results of two runs lie side by side,
            unless the run `goes_on` that they are of.
        """
        self._goes_on = goes_on
        try:
            there = sorted(each.name for each in self.path.glob("[!.]*"))
            if there and not goes_on:
                raise ConfigError(
                    f"expected a new or an empty folder for the results, got {self.path}, which "
                    f"has {some(there)}; name another folder, or remove them"
                )
            self._made = lacking_folders(self.path)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {self.path}: {error.strerror or error}"
            ) from error
        make_folder(self.path)
        make_folder(self.unfinished)
        self._is_unfinished = True

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Make it for a block that fills it; if it leaves it empty, take it away again."""
        self.make()
        try:
            yield
        finally:
            self.end()

    def publish(self) -> list[Path]:
        """Put the unfinished files into place, and return their paths.

        Raises
        ------
        ConfigError
            If that fails; of a new folder none is left then. Or if another run was quicker.
        """
        places: list[Path] = []
        with uninterrupted():
            files = sorted(self.unfinished.iterdir())
            others = [file.name for file in files if file.name not in self.own]
            if any((self.path / name).exists() for name in others) and not self._goes_on:
                self._is_unfinished = False
                raise ConfigError(
                    f"expected no other run to write to {self.path} meanwhile; the results of this "
                    f"one are in {self.unfinished}"
                )
            for file in files:
                places.append(self.path / file.name)
                try:
                    os.replace(file, places[-1])
                except OSError as error:
                    for place in () if self._goes_on else places[:-1]:
                        place.unlink(missing_ok=True)
                    raise ConfigError(f"cannot write {places[-1]}: {error.strerror}") from error
        _make_durable(self.path)
        return places

    def end(self) -> None:
        """Take away what is unfinished, and what was made and is empty; a folder that is not stays,
        and so do those above it.
        """
        if self._is_unfinished:
            rmtree(self.unfinished, ignore_errors=True)
        remove_empty(self._made)
