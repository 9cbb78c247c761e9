"""What engines and kernels of whole runs leave each other in memory: structs by their names in C.

The compiler checks each where a kernel takes it (`backends/cuda/arguments.py`).
"""

from __future__ import annotations

import numpy as np

DROPOUT_FIELDS = np.dtype(
    [("dropped_below", np.uint64), ("scale", np.float32), ("layer", np.uint32)]
)
SCALES_FIELDS = np.dtype(
    [
        (name, np.float32)
        for name in ("weights", "sums", "units", "gradients", "of_weights", "of_biases")
    ]
)
NETWORK_DROPOUT_FIELDS = np.dtype(
    [
        ("of_layer", DROPOUT_FIELDS),
        ("key", np.uint32, 2),
        ("first_step", np.uint32),
        ("unused", np.uint32),
    ]
)
NETWORK_FIELDS = np.dtype(
    [
        *((name, np.int64) for name in ("steps", "keys", "rows", "validation_rows")),
        *((name, np.int64) for name in ("record", "standing", "stopping")),
        ("scale", np.float32),
        *(
            (name, np.int32)
            for name in ("num_rows", "bits", "num_epochs", "num_validated", "step_stride")
        ),
        ("rule", np.float32, 4),
    ]
)
# Host and kernel both write it while the kernel runs.
PROGRESS_FIELDS = np.dtype(
    [(name, np.uint32) for name in ("epochs_done", "is_asked_to_end", "has_ended", "unused")]
)
QUEUE_FIELDS = np.dtype(
    [
        ("factor", np.float64),
        *((name, np.int64) for name in ("rungs", "numbers", "results")),
        *((name, np.int32) for name in ("num_folds", "of_validation", "of_accuracy", "rung")),
        *((name, np.uint32) for name in ("taken", "end", "returned", "published")),
    ]
)
CANDIDATE_BYTES = 24
_SUMS = np.dtype([("loss", np.float64), ("correct", np.float64)])
STANDING_FIELDS = np.dtype(
    [
        *((name, np.int32) for name in ("epochs_done", "halved_after", "place", "num_compared")),
        ("trained", _SUMS),
        ("validated", _SUMS),
    ]
)
STEP_SETTINGS_FIELDS = np.dtype([(name, np.float32) for name in ("rate", "eps", "kept", "penalty")])
STOPPING_FIELDS = np.dtype(
    [
        *((name, np.float64) for name in ("min_delta", "best")),
        ("patience", np.int32),
        *((name, np.int16) for name in ("of_validation", "of_accuracy")),
        *(
            (name, np.int32)
            for name in ("keeps_best", "any_gain_is_best", "has_best", "bad_epochs")
        ),
        *((name, np.int32) for name in ("has_improved", "epochs_done")),
    ]
)

TABLE_NETWORK_FIELDS = np.dtype(
    [
        *((name, np.int64) for name in ("x", "targets", "validation_x", "validation_targets")),
        *((name, np.int64) for name in ("bounds", "parameters", "keys")),
        *((name, np.int64) for name in ("losses", "error_sums", "errors")),
        ("key", np.uint32, 2),
        *((name, np.int32) for name in ("num_rows", "bits", "num_validated", "unused")),
    ]
)
TABLE_STEP_FIELDS = np.dtype(
    [
        *((name, np.float32) for name in ("rate", "eps", "decay", "kept_scale")),
        ("dropped_below", np.uint32),
    ]
)

# Of each struct that a kernel is given the address of, what the compiler checks.
STRUCTS: dict[str, dict[str, np.dtype]] = {
    "Dropout": {"Dropout": DROPOUT_FIELDS},
    "LayerScales": {"LayerScales": SCALES_FIELDS},
    "Network": {
        "Network": NETWORK_FIELDS,
        "Standing": STANDING_FIELDS,
        "Stopping": STOPPING_FIELDS,
    },
    "NetworkDropout": {"NetworkDropout": NETWORK_DROPOUT_FIELDS},
    "Progress": {"Progress": PROGRESS_FIELDS},
    "StepSettings": {"StepSettings": STEP_SETTINGS_FIELDS},
    "StoppingMemory": {"Stopping": STOPPING_FIELDS},
    "TableNetwork": {"TableNetwork": TABLE_NETWORK_FIELDS},
    "TableStep": {"TableStep": TABLE_STEP_FIELDS},
}
