"""Names of Keras, PyTorch and scikit-learn that one looks for here, and what this package has."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

RECURRENT = "no recurrent layers"
ATTENTION = "no attention layers"
OPERATIONS = "modules of tensor operations for that (docs/extending.md)"
FIT = "wf.fit(model, x, y, optimizer='adam')"
CALLBACKS = "wf.EarlyStopping, wf.Checkpoint, wf.CSVLog and others"
MOVED = "model.to('cuda') and device= of wf.fit"
CROSS_ENTROPY = "losses.SoftmaxCrossEntropy, for logits and integer labels"
BINARY = "losses.BinaryCrossEntropy, for logits"
GELU = "autograd.activate(x, 'gelu'), and so for nn's other activations"
SCHEDULES = "schedules as the learning rate, such as lr=optim.Cosine(0.1)"

LOSSES = {
    "CrossEntropyLoss CrossEntropy SparseCategoricalCrossentropy": CROSS_ENTROPY,
    "CategoricalCrossentropy NLLLoss": CROSS_ENTROPY,
    "BCEWithLogitsLoss BCELoss BinaryCrossentropy": BINARY,
    "MSELoss MSE": "losses.MeanSquaredError",
    "L1Loss MAE MeanAbsoluteError": "losses.AbsoluteError",
    "HuberLoss SmoothL1Loss": "losses.Huber",
    "PoissonNLLLoss": "losses.Poisson",
}

# By what one asks: a module of the package, a class, or an argument. Names that have the same
# answer stand together.
ANSWERS: Mapping[str, Mapping[str, str]] = {
    "warpfit": {
        "Sequential Module Model Parameter": "nn.Sequential and nn.Module",
        "Linear Dense Input layers": "layers in nn, as nn.Linear(inputs, outputs)",
        "Adam AdamW SGD optimizers": "optimizers in optim, as optim.Adam",
        "DataLoader": "wf.data.DataLoader",
        "callbacks ModelCheckpoint": CALLBACKS,
        "metrics": "metrics= of wf.fit, by scikit-learn's names",
        "compile": FIT,
        "from_numpy as_tensor": "wf.tensor(array)",
        "device cuda": "device='cuda' as an argument of wf.fit and of layers",
        "cat concat": "autograd.concatenate",
        "relu sigmoid softmax stack tanh where": "autograd.relu, autograd.softmax and others",
        "zeros ones rand randn arange": "NumPy's arrays, and wf.tensor(array)",
        "seed set_random_seed": "wf.manual_seed",
        "GridSearchCV": "wf.SweepCV",
        "RandomizedSearchCV": "wf.RandomizedSweepCV",
    },
    "warpfit.nn": {
        "Dense LazyLinear": "nn.Linear(inputs, outputs), and activations as layers",
        "Input InputLayer": "no layer for it: nn.Linear(inputs, outputs) has the size",
        "Conv1D": "nn.Conv1d(channels, filters, kernel_size)",
        "Conv2D": "nn.Conv2d(channels, filters, kernel_size)",
        "MaxPooling2D MaxPool2D": "nn.MaxPool2d",
        "AveragePooling2D AvgPool2D": "nn.AvgPool2d",
        "GlobalAveragePooling2D AdaptiveAvgPool2d": "nn.GlobalAvgPool2d",
        "GlobalMaxPooling2D AdaptiveMaxPool2d": "nn.GlobalMaxPool2d",
        "BatchNormalization": "nn.BatchNorm1d and nn.BatchNorm2d",
        "LayerNormalization": "nn.LayerNorm",
        "GroupNormalization InstanceNorm2d": "nn.GroupNorm",
        "Activation": "activations as layers, such as nn.ReLU()",
        "RandomTranslation": "nn.RandomShift(pixels)",
        "RandomHorizontalFlip": "nn.RandomFlip",
        "RandomErasing": "nn.RandomCutout(size)",
        "CenterCrop": "nn.RandomCrop(size), which shows the middle in evaluation",
        "functional F": "autograd.relu and others, and losses",
        "utils": "clip_norm= of optimizers",
        "LSTM LSTMCell GRU GRUCell RNN SimpleRNN": RECURRENT,
        "MultiheadAttention MultiHeadAttention Transformer TransformerEncoder": ATTENTION,
        "TransformerEncoderLayer": ATTENTION,
        "Conv3d ConvTranspose2d Conv2DTranspose SeparableConv2D Upsample ELU PReLU": OPERATIONS,
        "Softplus Hardswish Reshape Unflatten Concatenate Add Lambda": OPERATIONS,
        "ModuleDict": "nn.ModuleList, and modules as attributes",
        **LOSSES,
    },
    "warpfit.optim": {
        "Nadam": "optim.NAdam",
        "Adamax RAdam Ftrl": "optim.Adam and optim.AdamW",
        "LBFGS": "solver='lbfgs' of wf.MLPClassifier and wf.MLPRegressor",
        "lr_scheduler LambdaLR LRScheduler": SCHEDULES,
        "StepLR": "optim.Step, as the learning rate",
        "ExponentialLR ExponentialDecay": "optim.Exponential, as the learning rate",
        "CosineAnnealingLR CosineDecay": "optim.Cosine, as the learning rate",
        "LinearLR PolynomialLR PolynomialDecay": "optim.Linear, as the learning rate",
        "OneCycleLR": "optim.OneCycle, as the learning rate",
        "ReduceLROnPlateau": "optim.ReduceOnPlateau, as the learning rate",
    },
    "warpfit.losses": {
        **LOSSES,
        "KLDivLoss TripletMarginLoss CosineSimilarity Hinge": "functions of tensors as losses",
    },
    "warpfit.autograd": {
        "cat concat": "autograd.concatenate",
        "gelu silu selu mish leaky_relu": GELU,
        "exp log sqrt abs sum mean matmul": "methods and operators of tensors: x.exp(), x @ w",
    },
    "Module": {
        "fit compile train_on_batch": FIT,
        "evaluate": "wf.evaluate(model, x, y)",
        "predict predict_proba": "wf.predict(model, x, kind='probabilities')",
        "save save_weights": "wf.save(model, path)",
        "load_weights": "wf.load(path), and model.load_state_dict",
        "cuda cpu": MOVED,
        "half float double bfloat16": "precision= of wf.fit, and model.to(dtype='float64')",
        "add append": "all layers as arguments: nn.Sequential(nn.Linear(8, 4), nn.ReLU())",
        "get_weights weights": "model.state_dict()",
        "set_weights": "model.load_state_dict(state)",
        "count_params": "model.num_parameters",
        "trainable freeze": "model.requires_grad_(False)",
        "trainable_variables trainable_weights": "model.parameters()",
        "modules children": "model.named_modules() and model.named_children()",
        "register_buffer": "attributes: self.mean = nn.Buffer(array)",
        "register_parameter": "attributes: self.scale = nn.Parameter(array)",
        "register_forward_hook": "callbacks of wf.fit, and no hooks",
        "apply": "model.named_modules()",
        "export to_onnx": "nn.Sequential.to_onnx(path, input_shape), of the package's layers",
        "build": "nn.Module with __init__ and forward(x)",
    },
    "Tensor": {
        "relu sigmoid softmax tanh log_softmax": "autograd.relu(x), autograd.softmax(x) and others",
        "view": "x.reshape(shape)",
        "permute": "x.transpose(axes)",
        "t": "x.T",
        "cpu cuda": "x.to(device)",
        "float double long int half astype": "tensors of floats alone; labels stay arrays",
        "argmax argmin std var cumsum": "NumPy's functions for that: x.numpy()",
        "clamp clip": "autograd.minimum and autograd.maximum",
        "pow": "x ** number",
        "matmul mm": "x @ w",
        "norm": "x.square().sum().sqrt()",
        "requires_grad_": "wf.tensor(array, requires_grad=True)",
        "dim": "x.ndim",
    },
    "Optimizer": {
        "param_groups": "optimizer.spec.groups",
        "minimize apply_gradients": "loss.backward(), then optimizer.step()",
    },
    "History": {
        "history": "history['loss'], and history.to_dict()",
        "keys": "history.columns",
    },
    "loss": {
        "sparse_categorical_crossentropy categorical_crossentropy nll log_loss": "'cross_entropy'",
        "crossentropy cross-entropy CrossEntropyLoss": "'cross_entropy'",
        "binary_crossentropy bce BCEWithLogitsLoss": "'binary_cross_entropy'",
        "mean_squared_error squared_error MSELoss": "'mse'",
        "mae l1 mean_absolute_error L1Loss": "'absolute_error'",
    },
    "metric": {
        "acc": "'accuracy'",
        "auc AUC": "'roc_auc'",
        "mae": "'neg_mean_absolute_error'",
        "mse": "'neg_mean_squared_error'",
    },
}


def instead_of(owner: str, name: str) -> str:
    """Return ``"; warpfit has ..."`` for a message, on a name known from elsewhere; else ""."""
    found = _by_name(owner).get(name)
    return "" if found is None else f"; warpfit has {found}"


@cache
def _by_name(owner: str) -> dict[str, str]:
    return {name: text for names, text in ANSWERS[owner].items() for name in names.split()}


def refuse_attribute(module: str, name: str) -> NoReturn:
    """Raise AttributeError for what a module does not have, and say what it has instead."""
    told = f"module {module!r} has no attribute {name!r}"
    hint = instead_of(module, name) if module in ANSWERS else ""
    raise AttributeError(told + hint, name=name, obj=sys.modules[module])


class WithHints:
    """An object whose AttributeErrors say what there is instead of what others have."""

    if not TYPE_CHECKING:  # which is to know what there is

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError for what is not there."""
            kind = type(self)
            owners = (base.__name__ for base in kind.__mro__ if base.__name__ in ANSWERS)
            hint = next(filter(None, (instead_of(owner, name) for owner in owners)), "")
            own = getattr(kind, name, None)  # something whose code raised, if it has any
            if hint and getattr(own, "fget", own) is None:
                told = f"{kind.__name__!r} object has no attribute {name!r}{hint}"
                raise AttributeError(told, name=name, obj=self)
            # Raises again: this, or what a property raised.
            return object.__getattribute__(self, name)
