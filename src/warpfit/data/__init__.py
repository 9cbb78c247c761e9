"""Data: the IDX format, known datasets, the user's own data, and batches in the epoch order."""

from warpfit.data.dataset import Dataset
from warpfit.data.idx import read_idx, write_idx
from warpfit.data.loader import DataLoader
from warpfit.data.order import epoch_order
from warpfit.data.registry import available_datasets, dataset_names, load_dataset
from warpfit.data.user import load_user_data

__all__ = [
    "DataLoader",
    "Dataset",
    "available_datasets",
    "dataset_names",
    "epoch_order",
    "load_dataset",
    "load_user_data",
    "read_idx",
    "write_idx",
]
