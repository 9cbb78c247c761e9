"""What kernels of whole runs are compiled for; how they are launched follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from warpfit.backends.cuda.config import (
    ActivationName,
    ActivationNames,
    Config,
    Flag,
    Flags,
    Floats,
    Ints,
    Number,
    Real,
    Rule,
    TypeName,
)
from warpfit.backends.cuda.table_config import TableConfig


@dataclass(frozen=True, kw_only=True)
class LossConfig(Config):
    """Of all of them.

    Attributes
    ----------
    dtype : str
        Of products: ``'float16'`` or ``'bfloat16'``.
    loss : str
        Its class in ``loss_terms.cuh``.
    smoothed : bool
        Whether labels are.
    counts_rows : bool
        Whether rows are right or wrong.
    outputs : int
    """

    dtype: TypeName
    loss: TypeName
    smoothed: Flag
    counts_rows: Flag
    outputs: Number


@dataclass(frozen=True, kw_only=True)
class ResidentConfig(LossConfig):
    """Of those that update parameters, too.

    Attributes
    ----------
    batch : int
        Rows of a step.
    optimizer : str
        Its class of ``update_rules.cuh``.
    adaptive : bool
        Whether it needs a batch's whole gradient at once.
    slots : int
        Numbers of optimizer state a parameter.
    momentum, nesterov : bool
    decays : bool
        Whether a share of the parameters joins their gradients.
    rate_in_velocity : bool
        Whether velocities have the learning rate in them.
    """

    batch: Number
    optimizer: Rule
    adaptive: Flag
    slots: Number
    momentum: Flag
    nesterov: Flag
    decays: Flag
    rate_in_velocity: Flag


@dataclass(frozen=True, kw_only=True)
class OfLayers(Config):
    """Of those that take any number of layers.

    Attributes
    ----------
    layers : int
    widths : tuple of int
        Of the features, and of each layer's units.
    activations : tuple of str
        Of each layer.
    slopes : tuple of float
        Theirs.
    """

    layers: Number
    widths: Ints
    activations: ActivationNames
    slopes: Floats


@dataclass(frozen=True, kw_only=True)
class OneLaunchConfig(ResidentConfig):
    """Of ``one_launch``.

    Attributes
    ----------
    features, hidden : int
        Of `hidden` 0: no hidden layer.
    activation : str
        Of the hidden layer.
    cluster : int
        Blocks of a cluster: 1, 2, 4, 8 or 16.
    feature_parts : int
        Blocks that divide the features, and multiply the units of all of them; 1: none do.
    replicas : int
        Clusters that partition a batch.
    warps_k, warps_u, row_warps, output_warps : int
        Of a block: weight warps, along features and units; the others.
    weight_registers, row_registers, other_registers : int
        Of a thread; 0: as launched.
    group : int
        Tiles that warps wait for together.
    ahead : bool
        Whether products with a batch are found beside the step before.
    x_slots : int
        Of the ring of x.
    kept : int
        Tiles of x that stay from the forward pass to the backward pass: all or none. If the
        optimizer is adaptive all do, for one replica that does not look ahead.
    near_tiles : int
        Along the features, whose optimizer state lies in shared memory.
    sum_slots : int
        A power of two.
    sent_slots : int
        Steps of which blocks that divide the features leave sums for each other at once.
    own_of_tile : int
        Rows of a tile whose loss one block finds: 1 to 16, a power of two.
    shared_bytes : int
    exchange_bytes : int
        Of each rank; 0 for one replica.
    """

    features: Number
    hidden: Number
    activation: ActivationName
    cluster: Number
    feature_parts: Number
    replicas: Number
    warps_k: Number
    warps_u: Number
    row_warps: Number
    output_warps: Number
    weight_registers: Number
    row_registers: Number
    other_registers: Number
    group: Number
    ahead: Flag
    x_slots: Number
    kept: Number
    near_tiles: Number
    sum_slots: Number
    sent_slots: Number
    own_of_tile: Number
    shared_bytes: Number
    exchange_bytes: Number


@dataclass(frozen=True, kw_only=True)
class LayersConfig(ResidentConfig, OfLayers):
    """Of ``one_launch_layers``.

    Attributes
    ----------
    terms : int
        16-bit numbers whose sum a number of a product is: 1, or 2 for products as of float32.
    dropouts : tuple of bool
        Whether dropout follows each layer.
    cluster : int
        Blocks of a cluster: 1, 2, 4, 8 or 16.
    cards, replicas : int
        Cards that partition a batch, and clusters of each.
    warps : int
        Of a block, a power of two.
    held_tiles, near_tiles, far_tiles : int
        Tiles of a warp whose optimizer state is in registers, shared memory and memory.
    weighted, class_weights : bool
        Whether samples, and classes, have weights.
    clips : bool
        Whether the norm of the gradients is limited.
    penalized : bool
        Whether the squares of weights join the loss.
    weighed_penalty : bool
        Whether they do so over what rows weigh, in place of rows.
    x_slots : int
        Batches in shared memory: 1 or 2.
    unit_copies : int
        Of the first layer's units: 1 or 2.
    sums : int
        Parts of products in shared memory.
    shared_bytes : int
    exchange_bytes, card_sums_bytes : int
        Of each rank; 0 for one replica, and for one card.
    validates, stops : bool
        Whether it goes over validation data, and decides when the run is over.
    """

    terms: Number
    dropouts: Flags
    cluster: Number
    cards: Number
    replicas: Number
    warps: Number
    held_tiles: Number
    near_tiles: Number
    far_tiles: Number
    weighted: Flag
    class_weights: Flag
    clips: Flag
    penalized: Flag
    weighed_penalty: Flag
    x_slots: Number
    unit_copies: Number
    sums: Number
    shared_bytes: Number
    exchange_bytes: Number
    card_sums_bytes: Number
    validates: Flag
    stops: Flag


@dataclass(frozen=True, kw_only=True)
class CardConfig(ResidentConfig, OfLayers):
    """Of ``one_launch_card``.

    Attributes
    ----------
    dropouts : tuple of bool
        Whether dropout follows each layer.
    far_layers : tuple of bool
        Whether what weights of a layer have beside their rounded ones lies in memory, not in shared
        memory.
    held_layers : tuple of bool
        Whether low halves of weights lie in registers.
    streamed : bool
        Whether hidden layers' weights lie in memory, rounded ones as well.
    cluster : int
        Blocks of a cluster of the hardware: 2, 4, 8 or 16, or 1 if ranks are apart.
    ranks, clusters, warps : int
        Blocks of a cluster, clusters of all blocks, and warps of a block.
    shared_bytes, exchange_bytes : int
    validates, stops : bool
        Whether it goes over validation data, and decides when the run is over.
    """

    dropouts: Flags
    far_layers: Flags
    held_layers: Flags
    streamed: Flag
    cluster: Number
    ranks: Number
    clusters: Number
    warps: Number
    shared_bytes: Number
    exchange_bytes: Number
    validates: Flag
    stops: Flag


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(ResidentConfig, OfLayers):
    """Of ``one_launch_images``, whose linear layers follow convolutions.

    Attributes
    ----------
    image : tuple of int
        Height, width and channels of the network's input.
    convolutions : int
    kernel_heights, kernel_widths, padding_heights, padding_widths : tuple of int
        Of each convolution.
    channels : tuple of int
        That each gives.
    pools : tuple of int
        Height and width of the windows of the max pooling that follows each; 1: none does.
    conv_activations : tuple of str
        Of each convolution.
    conv_slopes : tuple of float
        Theirs.
    images : int
        Of a batch, that a block takes: 1 to 8.
    blocks, warps : int
        All blocks, and warps of a block.
    shared_bytes, exchange_bytes : int
    """

    image: Ints
    convolutions: Number
    kernel_heights: Ints
    kernel_widths: Ints
    padding_heights: Ints
    padding_widths: Ints
    channels: Ints
    pools: Ints
    conv_activations: ActivationNames
    conv_slopes: Floats
    images: Number
    blocks: Number
    warps: Number
    shared_bytes: Number
    exchange_bytes: Number


@dataclass(frozen=True, kw_only=True)
class OfManyNetworks(ResidentConfig):
    """Of those that train many networks.

    Attributes
    ----------
    penalized : bool
        Whether the squares of weights join the loss; not with sample weights.
    weighted, class_weights : bool
        Whether samples, and classes, have weights.
    keeps_best : bool
        Whether any network's ``Stopping`` does.
    halves : bool
        Whether networks are compared at rungs, and only some go on.
    """

    penalized: Flag
    weighted: Flag
    class_weights: Flag
    keeps_best: Flag = False
    halves: Flag = False


@dataclass(frozen=True, kw_only=True)
class NarrowConfig(OfLayers):
    """Of layers in a block's shared memory.

    Attributes
    ----------
    dropouts : tuple of bool
        Whether dropout follows each layer.
    gathers : bool
        Whether rows are found by an order, and converted.
    x_stages : int
        Tiles of x under way: 1 or 2.
    warps, blocks : int
        Of a block, and of a multiprocessor.
    piece_m, piece_n : int
        Tiles of 16 inputs and outputs of which a warp has the gradients.
    """

    dropouts: Flags
    gathers: Flag
    x_stages: Number
    warps: Number
    blocks: Number
    piece_m: Number
    piece_n: Number


@dataclass(frozen=True, kw_only=True)
class ManyConfig(OfManyNetworks, NarrowConfig):
    """Of ``many_networks``.

    Attributes
    ----------
    in_registers : bool
        Whether parameters are, or in shared memory.
    """

    in_registers: Flag


@dataclass(frozen=True, kw_only=True)
class SmallConfig(ResidentConfig, OfLayers):
    """Of ``one_launch_small_sm90``.

    Attributes
    ----------
    cluster : int
        Blocks that partition the rows of a batch.
    groups : int
        Of four warps each, which hold weights: one for each 64 rows of a block, or more.
    group_registers, helper_registers : int
        Of a thread of these, and of those that help; 0: as launched.
    shared_bytes : int
    """

    cluster: Number
    groups: Number
    group_registers: Number
    helper_registers: Number
    shared_bytes: Number


@dataclass(frozen=True, kw_only=True)
class ManyClustersConfig(OfManyNetworks):
    """Of ``many_networks_sm90``.

    Attributes
    ----------
    features, hidden : int
        Of `hidden` at most 128 (and `outputs` at most 16, `batch` at most 64).
    activation : str
        Of the hidden layer.
    slope : float
        Its.
    drops : bool
        Whether dropout follows the hidden layer.
    cluster : int
        At most 8, or 4 for at most 64 hidden units.
    shared_slices : int
        Of 16 features, whose weights are in shared memory.
    unit_registers, loss_registers, batch_registers : int
        Of a thread.
    target_words, shared_bytes : int
    """

    features: Number
    hidden: Number
    activation: ActivationName
    slope: Real
    drops: Flag
    cluster: Number
    shared_slices: Number
    unit_registers: Number
    loss_registers: Number
    batch_registers: Number
    target_words: Number
    shared_bytes: Number


@dataclass(frozen=True, kw_only=True)
class ManySmallConfig(OfManyNetworks, OfLayers):
    """Of ``many_small_networks_sm90``.

    Attributes
    ----------
    target_words : int
    groups : int
        That train a network each: at most 4.
    register_slots : int
        Of the optimizer state of parameters, how much lies in registers.
    shares_first : bool
        Whether the first layer's weights lie in shared memory.
    group_registers, row_registers : int
        Of a thread.
    order_ring, shared_bytes : int
    """

    target_words: Number
    groups: Number
    register_slots: Number
    shares_first: Flag
    group_registers: Number
    row_registers: Number
    order_ring: Number
    shared_bytes: Number


@dataclass(frozen=True, kw_only=True)
class NarrowStepConfig(LossConfig, NarrowConfig):
    """Of ``narrow_step``.

    Attributes
    ----------
    source : str
        The dtype of x as it is given.
    weighted, class_weights : bool
        Neither.
    """

    source: TypeName
    weighted: Flag = False
    class_weights: Flag = False


CONFIGS: dict[str, type[Config]] = {
    "many_networks": ManyConfig,
    "many_networks_sm90": ManyClustersConfig,
    "many_small_networks_sm90": ManySmallConfig,
    "narrow_step": NarrowStepConfig,
    "one_launch": OneLaunchConfig,
    "one_launch_card": CardConfig,
    "one_launch_images": ImagesConfig,
    "one_launch_layers": LayersConfig,
    "one_launch_small_sm90": SmallConfig,
    "table_networks": TableConfig,
}
