"""What kernels of whole runs are handed over; the comments they open with explain each field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from warpfit.backends.cuda.arguments import Arguments, Float, Int, Place, Unsigned

Floats = Annotated[Place, "float*"]
ConstFloats = Annotated[Place, "const float*"]
Batches = Annotated[Place, "const T*"]
# Where weights and biases lie, and for each slot those of a rule: of weights two, and of biases.
LayerPlaces = tuple[Place, Place, Place, Place, Place, Place]
LayerArrays = Annotated[LayerPlaces, "LayerArrays"]
Rule = Annotated[tuple[float, float, float, float], "RuleSettings"]
LossNumbers = Annotated[tuple[float, float, float], "LossSettings"]


@dataclass(frozen=True, kw_only=True)
class OneLaunchArguments(Arguments):
    """Of ``one_launch``."""

    batches: Batches
    targets: ConstFloats
    rules: Annotated[Place, "const StepRule*"]
    first: LayerArrays
    last: LayerArrays
    record: Annotated[Place, "double*"]
    gram: Annotated[Place, "const FragmentWords*"]
    gram_scales: ConstFloats
    exchanges: Annotated[Place, "OneLaunchExchange*"]
    num_rows: Int
    num_epochs: Int
    scale: Float
    rule: Rule
    slope: Float
    loss: LossNumbers


@dataclass(frozen=True, kw_only=True)
class SmallArguments(Arguments):
    """Of ``one_launch_small_sm90``, and what others take as well."""

    batches: Batches
    targets: ConstFloats
    settings: Annotated[Place, "const StepSettings*"]
    places: Annotated[Place, "float* const*"]
    record: Annotated[Place, "double*"]
    num_rows: Int
    num_epochs: Int
    scale: Float
    rule: Rule
    loss: LossNumbers


@dataclass(frozen=True, kw_only=True)
class ImagesArguments(SmallArguments):
    """Of ``one_launch_images``."""

    exchange: Annotated[Place, "ImagesExchange*"]


@dataclass(frozen=True, kw_only=True)
class PassesArguments(SmallArguments):
    """Of kernels that know dropout, validate and stop, too."""

    dropouts: Annotated[Place, "const Dropout*"]
    first_step: Int
    key0: Unsigned
    key1: Unsigned
    validation_batches: Batches
    validation_targets: ConstFloats
    num_validated: Int
    first_epoch: Int
    report_every: Int
    last_epoch: Int
    stopping: Annotated[Place, "StoppingMemory*"]
    best_places: Annotated[Place, "float* const*"]


@dataclass(frozen=True, kw_only=True)
class LayersArguments(PassesArguments):
    """Of ``one_launch_layers``."""

    largest_norm: Float
    penalty: Float
    scales: Annotated[Place, "const LayerScales*"]
    class_weights: ConstFloats
    far_slots: Annotated[Place, "float4*"]
    exchanges: Annotated[Place, "LayersExchange*"]
    card: Int
    card_sums: Annotated[Place, "CardSums* const*"]
    progress: Annotated[Place, "Progress*"]
    answers: Annotated[Place, "unsigned*"]
    talk_every: Int


@dataclass(frozen=True, kw_only=True)
class CardArguments(PassesArguments):
    """Of ``one_launch_card``."""

    words: Annotated[Place, "unsigned*"]
    far: Annotated[Place, "float4*"]


@dataclass(frozen=True, kw_only=True)
class ManySmallArguments(Arguments):
    """Of ``many_small_networks_sm90``."""

    x: Batches
    targets: ConstFloats
    networks: Annotated[Place, "const Network*"]
    parameters: Floats
    best: Floats
    queue: Annotated[Place, "Queue*"]
    num_networks: Int
    loss: LossNumbers


@dataclass(frozen=True, kw_only=True)
class ManyClustersArguments(ManySmallArguments):
    """Of ``many_networks_sm90``."""

    dropouts: Annotated[Place, "const NetworkDropout*"] = None
    weights: ConstFloats = None
    total_weights: Annotated[Place, "const double*"] = None
    class_weights: ConstFloats = None


@dataclass(frozen=True, kw_only=True)
class ManyArguments(ManyClustersArguments):
    """Of ``many_networks``."""

    targets: Annotated[Place, "const Target*"]
    loss: Annotated[tuple[float, float, float], "LossNumbers"]


@dataclass(frozen=True, kw_only=True)
class TableArguments(Arguments):
    """Of ``table_networks``."""

    networks: Annotated[Place, "const TableNetwork*"]
    memory: Annotated[Place, "TableMemory*"]
    steps: Annotated[Place, "const TableStep*"]
    turns: Annotated[Place, "Turns*"]
    first_epoch: Int
    num_epochs: Int
    steps_per_epoch: Int
    validation_blocks: Int


ARGUMENTS: dict[str, type[Arguments]] = {
    "many_networks": ManyArguments,
    "many_networks_sm90": ManyClustersArguments,
    "many_small_networks_sm90": ManySmallArguments,
    "one_launch": OneLaunchArguments,
    "one_launch_card": CardArguments,
    "one_launch_images": ImagesArguments,
    "one_launch_layers": LayersArguments,
    "one_launch_small_sm90": SmallArguments,
    "table_networks": TableArguments,
}
