"""The IDX format, known datasets, the user's own data and tables, and batches in epoch order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand

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


# Who trains on arrays needs no files, nor scikit-learn and pandas, which take long to import.
__getattr__, __dir__ = imports_on_demand(
    __name__,
    {
        "dataset": ("Dataset",),
        "idx": ("read_idx", "write_idx"),
        "loader": ("DataLoader",),
        "order": ("epoch_order",),
        "preprocessing": ("TablePreprocessor",),
        "registry": ("available_datasets", "dataset_names", "load_dataset"),
        "user": ("load_user_data",),
    },
)
