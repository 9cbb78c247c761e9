"""What of scikit-learn is replaced, once it is imported, and put back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # at run time they would be what a start takes longest for
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Replacement(NamedTuple):
    """An attribute of a module, or of a class in it, and what makes another of it."""

    owner: str  # "" is the module
    name: str
    maker: tuple[str, str]  # a module of ours, and its function from the original to the new


_LOOP = (Replacement("", "Parallel", ("warpfit.accel.loops", "loop")),)
_PERCEPTRON, _PERCEPTRONS = "BaseMultilayerPerceptron", "warpfit.accel.perceptrons"
REPLACED: dict[str, Sequence[Replacement]] = {
    "sklearn.neural_network._multilayer_perceptron": (
        Replacement(_PERCEPTRON, "_fit", (_PERCEPTRONS, "fit_by")),
        Replacement(_PERCEPTRON, "_forward_pass_fast", (_PERCEPTRONS, "outputs_by")),
    ),
    "sklearn.model_selection._search": _LOOP,
    "sklearn.model_selection._validation": _LOOP,
    "sklearn.ensemble._bagging": _LOOP,
    "sklearn.multiclass": _LOOP,
    "sklearn.multioutput": _LOOP,
}


def install() -> None:
    """Let scikit-learn's `MLPClassifier` and `MLPRegressor` be trained by this package, in this
    process.

    The classes stay scikit-learn's, also those that were imported before. What this package cannot
    do, scikit-learn's own code does; `report` says what and why. A second call does nothing.

    Examples
    --------
    >>> import warpfit.accel
    >>> from sklearn.neural_network import MLPRegressor
    >>> warpfit.accel.install()
    >>> regressor = MLPRegressor(solver="lbfgs", random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
    >>> [call.name for call in warpfit.accel.report().calls]
    ['MLPRegressor.fit']
    >>> warpfit.accel.uninstall()
    """
    if _FINDER in sys.meta_path:
        return
    sys.meta_path.insert(0, _FINDER)
    for name in REPLACED:
        if name in sys.modules:
            _replace_in(sys.modules[name])


def uninstall() -> None:
    """Let scikit-learn be as it was before `install`; what was fitted stays fitted.

    Examples
    --------
    >>> wf.accel.install()
    >>> wf.accel.uninstall()
    """
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    while _UNDO:
        _UNDO.pop()()


_UNDO: list[Callable[[], None]] = []


def _replace_in(module: ModuleType) -> None:
    for owner_name, name, (home, maker) in REPLACED[module.__name__]:
        owner = getattr(module, owner_name, None) if owner_name else module
        original = getattr(owner, name, None)
        if original is None:  # another release of scikit-learn: its own code does it
            continue
        setattr(owner, name, getattr(import_module(home), maker)(original))
        _UNDO.append(_setter(owner, name, original))


def _setter(owner: Any, name: str, original: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, original)


class _Finder:
    """Finds modules as others of `sys.meta_path` do, and lets those of `REPLACED` be replaced."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module's spec, None for all that stays as it is."""
        if fullname not in REPLACED:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Replacing(spec.loader)
                found: ModuleSpec = spec
                return found
        return None


class _Replacing:
    """A loader that replaces in a module what is to be replaced, and leaves no other trace."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the module's own loader returns."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Let the module's own loader run it, and replace."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if _FINDER in sys.meta_path:
            _replace_in(module)


_FINDER: Any = _Finder()
