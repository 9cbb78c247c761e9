"""Data: the IDX format, known datasets, the user's own data and tables, and batches in the epoch
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpfit.data.dataset import Dataset
from warpfit.data.idx import read_idx, write_idx
from warpfit.data.loader import DataLoader
from warpfit.data.order import epoch_order
from warpfit.data.registry import available_datasets, dataset_names, load_dataset
from warpfit.data.user import load_user_data

if TYPE_CHECKING:
    from warpfit.data.preprocessing import TablePreprocessor

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


def __getattr__(name: str) -> Any:
    """Import the preprocessor when it is first asked for: scikit-learn and pandas take long to
    import.
    """
    if name == "TablePreprocessor":
        from warpfit.data.preprocessing import TablePreprocessor

        return TablePreprocessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
