"""The parameters of all other kernels: the host packs by these types, which the compiler checks.

Kernels of whole runs take one struct instead: `resident_arguments.py`.
"""

from __future__ import annotations

from struct import calcsize

from warpfit.backends.cuda.arguments import FORMATS, format_of

_MATMUL = (
    "const T*, const T*, Out*, const T*, const T*, Out*, double, double, Acc*, unsigned*"
    + ", int" * 6
)

# Of each entry its types of C, as they are after its includes.
SIGNATURES = {
    "activation_backward": "const T*, const T*, const T*, T*, double, int64",
    "activation_forward": "const T*, T*, double, int64",
    "add_at": (
        "const DTYPE*, const int64*, const int64*, const int64*, int64, int64, DTYPE*, "
        "Layout, Layout, int64, int64"
    ),
    "all_finite": "TensorList, bool*",
    "batch_norm_backward": (
        "const T*, const T*, const P*, const P*, const Acc*, const Acc*, const Acc*, T*, int64, "
        "int, int, int, int64, double, double, int"
    ),
    "batch_norm_forward": (
        "const T*, const P*, const P*, const P*, const P*, const T*, Acc*, T*, int64, int, int, "
        "int, int64, double, double, int"
    ),
    "batch_norm_statistics": (
        "const T*, P*, P*, Acc*, double*, unsigned*, int64, int, int, int, int64, double, double"
    ),
    "batched_matmul": "const T*, const T*, T*, int, int, int",
    "binary": "const DTYPE*, Layout, double, const DTYPE*, Layout, double, Result::type*, int64",
    "cast": "const Source*, T*, double, int64",
    "cast_into": "TensorList",
    "clip_by_norm": "TensorList, const double*, double",
    "conv2d_backward_input": "const T*, const T*, T*" + ", int" * 15,
    "conv2d_backward_weight": (
        "const T*, const T*, Out*, Out*, Acc*, unsigned*, double" + ", int" * 16
    ),
    "conv2d_backward_weight_boxes_sm90": "TensorMap, TensorMap, float*" + ", int" * 19,
    "conv2d_backward_weight_few_mma": "const T*, const uint8*, const T*, float*" + ", int" * 13,
    "conv2d_backward_weight_sm90": "const T*, const uint8*, const T*, float*" + ", int" * 14,
    "conv2d_boxes_sm90": (
        "TensorMap, TensorMap, T*, const T*, const T*, T*, double" + ", int" * 40
    ),
    "conv2d_depthwise": "const T*, const T*, const T*, T*, T*, double" + ", int" * 13,
    "conv2d_depthwise_backward_weight": "const T*, const T*, Acc*" + ", int" * 12,
    "conv2d_few_mma": "const T*, const T*, const T*, T*, T*, uint8*, double" + ", int" * 10,
    "conv2d_forward": "const T*, const T*, const T*, T*, T*, double" + ", int" * 15,
    "conv2d_grouped_backward_input": "const T*, const T*, T*, int64" + ", int" * 16,
    "conv2d_grouped_backward_weight": "const T*, const T*, Acc*, int64" + ", int" * 16,
    "conv2d_grouped_backward_weight_mma": "const T*, const T*, float*" + ", int" * 13,
    "conv2d_grouped_forward": "const T*, const T*, const T*, T*, T*, double, int64" + ", int" * 16,
    "conv2d_grouped_mma": "const T*, const T*, const T*, T*, T*, double" + ", int" * 13,
    "conv2d_sm90": (
        "const T*, const T*, const T*, const T*, T*, T*, uint8*, double" + ", int" * 15
    ),
    "copy_strided": "const SOURCE*, Layout, DTYPE*, Layout, int, int64",
    "count_correct": "const T*, const int64*, int64*, double*, unsigned*, int64, int, int, int",
    "count_correct_binary": "const T*, const T*, int64*, double*, unsigned*, int64, int, int",
    "dropout_backward": "const T*, const T*, T*, int64",
    "dropout_forward": (
        "const T*, T*, T*, int64, int64, int64, Scalar, unsigned, unsigned, unsigned, uint64, "
        "double, int"
    ),
    "element_loss_backward": (
        "const T*, const T*, const Acc*, const T*, T*, double, double, int64, int64"
    ),
    "element_loss_forward": (
        "const T*, const T*, const T*, Acc*, Acc*, double*, unsigned*, double, double, int64, int64"
    ),
    "element_loss_step": (
        "const T*, const Acc*, const int64*, Scalar, int64, int64, const Acc*, T*, double*, "
        "Scalar, double*, unsigned*, double, double, double, double, int64, int64, int"
    ),
    "epoch_order": (
        "int64*, unsigned, int, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, "
        "unsigned, unsigned"
    ),
    "gather_batches": (
        "const SOURCE*, const unsigned*, const float*, const unsigned*, T*, unsigned*, double, "
        "int, int, int"
    ),
    "gather_rows": "const SOURCE*, const int64*, DTYPE*, int, int",
    "gemm_sm90": (
        "TensorMap, TensorMap, TensorMap, TensorMap, Out*, const T*, const T*, Out*, double, "
        "double, float*, unsigned*, int, int, int, int"
    ),
    "gram_batches": "const T*, FragmentWords*, float*, int",
    "initial_values": "const uint32*, const double*, float*, int64, int64, unsigned, int",
    "l2_penalty": "TensorList, double, Scalar, double*, int, int, unsigned*, double*",
    "layer_norm_backward": "const T*, const T*, const T*, const Acc*, T*, int64, int, int",
    "layer_norm_forward": "const T*, const T*, const T*, T*, Acc*, int64, int, double, int",
    "linear_cross_entropy_step": (
        "const T*, const T*, const T*, const int64*, const int64*, Scalar, int64, int64, T*, T*, "
        "double*, Scalar, double*, unsigned*, double, double, double, int64, int"
    ),
    "linear_update_sm90": "UpdateList, double" + ", Scalar" * 6,
    "matrix_directions": "TensorList, double, int, double*",
    "matrix_products": "ProductList, Scalar, Scalar",
    "matmul_mma": _MATMUL,
    "matmul_naive": _MATMUL,
    "matmul_register": _MATMUL,
    "matmul_tiled": _MATMUL,
    "member_gradients_sm90": (
        "WeightList, MemberGradients, const float4*, const float*, const float*" + ", Scalar" * 6
    ),
    "member_layers_backward_sm90": (
        "MemberNetwork, const float*, const float*, const float*, const float*, uint4*, unsigned*, "
        "float*, float*, double"
    ),
    "member_layers_forward_sm90": (
        "MemberNetwork, const float*, const float*, const float*, const float*, float*, uint4*, "
        "unsigned*, Scalar, RoundKeys, unsigned, double"
    ),
    "member_orders": "int64*, const uint32*, unsigned, int, unsigned",
    "member_relu_backward": (
        "const T*, const T*, const bool*, const T*, const T*, const T*, T*, Acc*, Acc*, Acc*, int, "
        "int, double, double"
    ),
    "member_relu_forward": (
        "const T*, const T*, const T*, const T*, T*, bool*, int64, int, Scalar, unsigned, "
        "unsigned, RoundKeys, unsigned, double, int"
    ),
    "member_weights_sm90": "WeightList, float4*",
    "narrow_step": (
        "const SOURCE*, const int64*, Scalar, int64, int64, NarrowNetwork, const Target*, "
        "float*, double*, Scalar, double*, unsigned*, double, double, double, int64"
    ),
    "narrow_update": "NarrowParts, double" + ", Scalar" * 6,
    "next_batch": "Windows, const int64*, const double*, double*, int, Scalar, int64, int64, int64",
    "norm_parameter_gradients": (
        "const T*, const T*, const P*, const P*, const Acc*, Acc*, Acc*, double*, unsigned*, "
        "int64, int, int, int, int64, int, double, double"
    ),
    "piecewise_linear_backward": (
        "const T*, const T*, const T*, const T*, const T*, const T*, T*, T*, T*, T*, unsigned*, "
        "int, int, int"
    ),
    "piecewise_linear_forward": "const T*" + ", const T*" * 7 + ", T*, int, int, int",
    "pool2d_backward": "const T*, T*, const uint8*, int, double" + ", int" * 13,
    "pool2d_forward": "const T*, T*, uint8*, int, double" + ", int" * 14,
    "record_step": "double*, Scalar, const DTYPE*, const DTYPE*, const int64*, const double*",
    "reduce": (
        "const DTYPE*, DTYPE*, Acc*, unsigned*, double, Layout, Layout, Layout, int64, int64, "
        "int64, int"
    ),
    "softmax_backward": "const T*, const T*, T*, int64, int, int, int",
    "softmax_cross_entropy_backward": (
        "const T*, const int64*, const Acc*, const T*, const T*, T*, double, int64, int"
    ),
    "softmax_cross_entropy_forward": (
        "const T*, const int64*, const T*, const T*, T*, Acc*, Acc*, double*, unsigned*, "
        "double, int64, int, int, int"
    ),
    "softmax_cross_entropy_step": (
        "const T*, const int64*, const int64*, Scalar, int64, int64, const Acc*, const Acc*, "
        "T*, double*, Scalar, double*, unsigned*, double, double, int64, int, int, int"
    ),
    "softmax_forward": "const T*, T*, int64, int, int, int",
    "sum_columns": "const T*, OUT*, Acc*, unsigned*, double, int64, int, int, int64",
    "sum_squares": "TensorList, double*, int, int, unsigned*, double*",
    "take": "const DTYPE*, Layout, const int64*, int64, Layout, int64, DTYPE*, int64",
    "take_windows": "const T*, const float*, T*" + ", int" * 8,
    "take_windows_backward": "const T*, const float*, T*" + ", int" * 8,
    "unary": "const DTYPE*, Layout, DTYPE*, int64",
    "update_parameters": "TensorList" + ", Scalar" * 6,
    "where": (
        "const bool*, Layout, const DTYPE*, Layout, double, const DTYPE*, Layout, double, DTYPE*, "
        "int64"
    ),
    "write_number": "double*, double",
}


def formats_of(name: str) -> tuple[str, ...]:
    """Return how `struct` packs each parameter of a kernel."""
    return tuple(format_of(kind) for kind in SIGNATURES[name].split(", ") if kind)


def check_of(name: str) -> str:
    """Return what follows a kernel's source: it compiles only if it takes what the host packs."""
    types = SIGNATURES[name]
    structs = sorted(kind for kind in {*types.split(", ")} & {*FORMATS} if kind[0].isupper())
    sizes = [f"sizeof({kind}) == {calcsize(format_of(kind))}" for kind in structs]
    tests = [f"IS_ENTRY<decltype(&{name}), void (*)({types})>", *sizes]
    return "\n".join(
        [
            "template <class Entry, class OfHost>",
            "constexpr bool IS_ENTRY = false;",
            "template <class Entry>",
            "constexpr bool IS_ENTRY<Entry, Entry> = true;",
            *(f'static_assert({test}, "the host packs other arguments");' for test in tests),
        ]
    )
