"""Data: the IDX format, known datasets, the user's own data and tables, and batches in the epoch
order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpfit.data.dataset import Dataset
    from warpfit.data.idx import read_idx, write_idx
    from warpfit.data.loader import DataLoader
    from warpfit.data.order import epoch_order
    from warpfit.data.preprocessing import TablePreprocessor
    from warpfit.data.registry import available_datasets, dataset_names, load_dataset
    from warpfit.data.user import load_user_data

__all__ = [
    "DataLoader",
    "Dataset",
    "TablePreprocessor",
    "available_datasets",
    "dataset_names",
    "epoch_order",
    "load_dataset",
    "load_user_data",
    "read_idx",
    "write_idx",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__


HOMES = {
    "DataLoader": "loader",
    "Dataset": "dataset",
    "TablePreprocessor": "preprocessing",
    "available_datasets": "registry",
    "dataset_names": "registry",
    "epoch_order": "order",
    "load_dataset": "registry",
    "load_user_data": "user",
    "read_idx": "idx",
    "write_idx": "idx",
}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: who trains on arrays needs no files, nor
    scikit-learn and pandas, which take long to import.
    """
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value
    return value
