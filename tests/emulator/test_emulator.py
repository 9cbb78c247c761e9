"""The emulator: CUDA's built-ins do what they should, and planted mistakes are caught."""

from __future__ import annotations

import ctypes
import itertools
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from emulator.build import build, compile_once, gxx_missing
from emulator.device import ORDERS, PLANTED, Device
from emulator.runtime import EmulatedRuntime
from emulator.sanitized import run_sanitized, sanitizer_missing
from warpfit.backends.cuda import CudaBackend
from warpfit.errors import CompileError, DeviceError

pytestmark = [
    pytest.mark.skipif(gxx_missing() is not None, reason=str(gxx_missing())),
    pytest.mark.in_turns(2),
]


# --------------------------------------------------------------------------------------------------
# built-ins


@ORDERS
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_a_tiled_product_of_odd_sizes(reverse: bool, dtype: str, tolerance: float) -> None:
    rng, (m, k, n) = np.random.default_rng(0), (19, 37, 23)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    runtime = EmulatedRuntime(folder=PLANTED, reverse=reverse)
    memories = [runtime.allocate(8 * size) for size in (m * k, k * n, m * n)]
    runtime.upload(memories[0].pointer, a)
    runtime.upload(memories[1].pointer, b)
    values = [ctypes.c_void_p(memory.pointer) for memory in memories] + [
        ctypes.c_int(x) for x in (m, n, k)
    ]
    pointers = (ctypes.c_void_p * 6)(*map(ctypes.addressof, values))
    function = runtime.load("tiled_product", (("DTYPE", dtype),))
    runtime.launch(function, (2, 2, 1), (16, 16, 1), 0, ctypes.addressof(pointers))
    c = np.empty((m, n), dtype)
    runtime.download(c, memories[2].pointer)
    np.testing.assert_allclose(c, a @ b, rtol=0, atol=10 * tolerance)


def expected_collectives(t: np.ndarray) -> list[Any]:
    """Return the rows of ``words`` that collectives.cu writes with 64 threads."""
    lane, warp = t % 32, t // 32 * 32
    return [
        warp + 3,
        10 * (t // 8 * 8 + (t + 5) % 8),
        np.where(lane >= 2, t - 2, t),
        np.where(t % 8 >= 3, t - 3, t),
        np.where(lane < 31, t + 1, t) << 40,
        np.where(t % 4 + 3 <= 3, t + 3, t),
        t ^ 9,
        np.where((t ^ 5) <= (t | 3), t ^ 5, t),
        np.where(
            t < 32,
            sum(1 << i for i in range(0, 32, 3)),
            sum(1 << i for i in range(32) if (32 + i) % 3 == 0),
        ),
        t >= 32,
        t < 32,
        0xFFFFFFFF,
        np.where(t < 32, sum(range(32)), sum(range(32, 64))),
        warp - 50,
        warp + 31,
        13,
        1,
        0,
    ]


@ORDERS
def test_shuffles_votes_and_counting_barriers(reverse: bool) -> None:
    t = np.arange(64)
    expected = np.array([np.broadcast_to(row, 64) for row in expected_collectives(t)], np.int64)
    words, wide = np.empty((18, 64), np.int64), np.empty((2, 64))
    values = np.random.default_rng(0).integers(-99, 99, 64).astype(np.float32)
    Device(reverse=reverse).run("collectives", words, wide, values, block=64)
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(wide[0], 0.5 + (t ^ 1))
    np.testing.assert_array_equal(wide[1], values.reshape(2, 32).sum(axis=1).repeat(32))


@ORDERS
def test_atomics(reverse: bool) -> None:
    n = 4 * 48
    t = np.arange(n)
    words = np.array([0, 0, 3, 0, 0xFFFFFFFF, 0, 1000, 0, 0], np.uint32)
    signed, wide, before = (
        np.array([-1000, 1000], np.int32),
        np.zeros(1, np.uint64),
        np.empty(n, np.uint32),
    )
    Device(reverse=reverse).run("counters", signed, words, wide, before, grid=4, block=48)
    expected = [
        n,
        n % 7,
        (3 - n) % 7,
        0xFFFFFFFF,
        0xFFFFFF00,
        np.bitwise_xor.reduce(t),
        1000 - 2 * n,
        77,
        5,
    ]
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(signed, [n - 101, -100])
    assert wide[0] == n << 33
    np.testing.assert_array_equal(before, t[::-1] if reverse else t)


@ORDERS
def test_dynamic_shared_memory(reverse: bool) -> None:
    source = np.arange(5 * 7, dtype=np.float64)
    target = np.empty_like(source)
    Device(reverse=reverse).run(
        "reversed", target, source, grid=5, block=7, shared=56, DTYPE="float64"
    )
    np.testing.assert_array_equal(target.reshape(5, 7), source.reshape(5, 7)[:, ::-1])


# --------------------------------------------------------------------------------------------------
# PTX twins


def awkward_numbers() -> np.ndarray:
    """Return float32 numbers with all kinds of roundings: random bits, ties and their neighbours,
    the special ones.
    """
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))]
    special = np.array([0, 65519.996, 65520, 65536, 1e-8, 3.4e38, np.inf, np.nan], np.float32)
    bfloat_ties = (bits[:4000] & 0xFFFF0000) | 0x8000
    numbers = np.concatenate([halves, ties, *near, special])
    words = np.concatenate([bits, bfloat_ties]).view(np.float32)
    return np.concatenate([numbers, -numbers, words])


def bfloat_bits(numbers: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16 numbers, found by comparing distances."""
    low = numbers.view(np.uint32) & np.uint32(0xFFFF0000)
    high = low + np.uint32(0x10000)
    exact = numbers.astype(np.float64)
    below, above = (exact - x.view(np.float32).astype(np.float64) for x in (low, high))
    # Beyond the largest number lies 2^128, which only float64 holds.
    above = np.where((high & 0x7FFFFFFF) == 0x7F800000, exact - np.copysign(2.0**128, exact), above)
    up = (np.abs(above) < np.abs(below)) | (
        (np.abs(above) == np.abs(below)) & ((low >> 16) % 2 == 1)
    )
    return (np.where(up, high, low) >> 16).astype(np.uint16)


@pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_conversions_round_to_the_nearest() -> None:
    numbers, halves = awkward_numbers(), np.arange(65536, dtype=np.uint16)
    n = numbers.size
    half, bfloat = np.empty(n, np.uint16), np.empty(n, np.uint16)
    widened = np.empty(65536, np.float32)
    grid = -(-max(n, 65536) // 256)
    Device().run(
        "conversions", numbers, half, bfloat, n, halves, widened, 65536, grid=grid, block=256
    )
    nan, finite = np.isnan(numbers), np.isfinite(numbers)
    np.testing.assert_array_equal(half[~nan], numbers[~nan].astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(bfloat[finite], bfloat_bits(numbers[finite]))
    infinite = np.isinf(numbers)
    np.testing.assert_array_equal(bfloat[infinite], numbers.view(np.uint32)[infinite] >> 16)
    assert nan.any()
    assert (half[nan] == 0x7FFF).all()
    assert (bfloat[nan] == 0x7FFF).all()
    expected = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(widened, expected)
    np.testing.assert_array_equal(
        np.signbit(widened[expected == 0]), np.signbit(expected[expected == 0])
    )


def pairs(matrices: np.ndarray) -> np.ndarray:
    """Return the registers of ldmatrix: row l of the result is lane l's, one register a matrix."""
    lanes = np.arange(32)
    low, high = (matrices[:, lanes // 4, 2 * (lanes % 4) + i].astype(np.uint32) for i in (0, 1))
    return (low | high << 16).T


@ORDERS
def test_ldmatrix(reverse: bool) -> None:
    matrices = np.random.default_rng(0).integers(0, 65536, (4, 8, 8)).astype(np.uint16)
    registers = np.empty((32, 8), np.uint32)
    Device(reverse=reverse).run("load_fragments", matrices, registers, 0)
    transposed = matrices.transpose(0, 2, 1)
    parts = [pairs(x) for x in (matrices, transposed)]
    np.testing.assert_array_equal(registers, np.concatenate(parts, axis=1))


def test_ldmatrix_demands_alignment_and_shared_memory() -> None:
    matrices, registers = np.zeros((4, 8, 8), np.uint16), np.empty((32, 8), np.uint32)
    with pytest.raises(
        DeviceError, match=r"ldmatrix_x4: expected an address aligned to 16 bytes, got 0x"
    ):
        Device().run("load_fragments", matrices, registers, 4)
    with pytest.raises(
        DeviceError, match=r"ldmatrix_x4: expected 16 bytes of shared memory, got 0x"
    ):
        Device().run("load_fragments", matrices, registers, 1 << 20)


def test_ldmatrix_reads_nothing_that_a_copy_is_writing() -> None:
    matrices = np.random.default_rng(0).integers(0, 65536, (4, 8, 8)).astype(np.uint16)
    registers = np.empty((32, 3), np.uint32)
    Device().run("copied_fragments", matrices, registers, WAIT="1")
    np.testing.assert_array_equal(registers, pairs(matrices)[:, :3])
    with pytest.raises(DeviceError, match=r"ldmatrix_x4: a copy for which nobody has waited is in"):
        Device().run("copied_fragments", matrices, registers, WAIT="0")


def as_f16(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = x.astype(np.float16)
    return half.view(np.uint16).astype(np.uint32), half.astype(np.float64)


def as_bf16(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = bfloat_bits(x).astype(np.uint32)
    return bits, (bits << 16).view(np.float32).astype(np.float64)


def as_tf32(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return words with low bits that the instruction has to ignore."""
    return x.view(np.uint32), (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(
        np.float64
    )


@ORDERS
@pytest.mark.parametrize(
    ("kind", "k", "words"),
    [("f16", 16, as_f16), ("bf16", 16, as_bf16), ("tf32", 8, as_tf32), ("f16_k8", 8, as_f16)],
)
def test_mma(
    reverse: bool, kind: str, k: int, words: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
) -> None:
    rng = np.random.default_rng(0)
    a, exact_a = words(rng.standard_normal((16, k)).astype(np.float32))
    b, exact_b = words(rng.standard_normal((k, 8)).astype(np.float32))
    c, d = rng.standard_normal((16, 8)).astype(np.float32), np.empty((16, 8), np.float32)
    Device(reverse=reverse).run("multiply_fragments", a, b, c, d, KIND=kind)
    np.testing.assert_allclose(d, c + exact_a @ exact_b, rtol=1e-6, atol=1e-6)


def test_mma_demands_a_whole_warp() -> None:
    a, b, c = (
        np.zeros((16, 16), np.uint32),
        np.zeros((16, 8), np.uint32),
        np.zeros((16, 8), np.float32),
    )
    with pytest.raises(
        DeviceError, match="mma_m16n8k16_f16: expected a whole warp, got one of 31 threads"
    ):
        Device().run("multiply_fragments", a, b, c, c.copy(), block=31, KIND="f16")


def staged_copy(piece: int, *, skew: int = 0, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what staged_copy.cu makes of random words, and what it should."""
    step, n = 32 * piece, 3 * 32 * piece
    valid = n - step // 2
    source = np.random.default_rng(0).integers(0, 1 << 31, n + 4).astype(np.uint32)
    target = np.empty(n, np.uint32)
    wait = str(int(settings.pop("wait", True)))
    Device(**settings).run(
        "staged_copy", target, source, n, valid, skew, PIECE=str(piece), WAIT=wait
    )
    expected = np.where(np.arange(n) < valid, source[:n], 0)
    return target, expected.reshape(3, step)[:, ::-1].ravel()


@ORDERS
@pytest.mark.parametrize("piece", [4, 2, 1])
def test_copy_async(reverse: bool, piece: int) -> None:
    target, expected = staged_copy(piece, reverse=reverse)
    np.testing.assert_array_equal(target, expected)


@ORDERS
def test_copy_async_without_the_wait_shows_poison(reverse: bool) -> None:
    target, expected = staged_copy(4, wait=False, reverse=reverse)
    assert (target == 0xFFFFFFFF).all()
    assert (expected != 0xFFFFFFFF).all()


def test_copy_async_demands_alignment() -> None:
    with pytest.raises(
        DeviceError, match="copy_async_16: expected an address aligned to 16 bytes, got 0x"
    ):
        staged_copy(4, skew=1)


# --------------------------------------------------------------------------------------------------
# barriers


def ring(bug: str = "NONE", *, steps: int = 8, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what ring.cu makes of random numbers, and what it should."""
    source = np.random.default_rng(0).standard_normal((steps, 128)).astype(np.float32)
    target = np.zeros_like(source)
    Device(**settings).run("ring", target, source, steps, block=64, shared=3 * 512 + 48, BUG=bug)
    return target, 2 * source[:, ::-1]


@ORDERS
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_a_ring_of_buffers_between_barriers(reverse: bool, arch: str) -> None:
    target, expected = ring(reverse=reverse, arch=arch)
    np.testing.assert_array_equal(target, expected)


def test_sleeping_is_no_deadlock_while_others_arrive() -> None:
    target, expected = ring(steps=5000, arch="sm_75")  # more rounds than all may sleep through
    np.testing.assert_array_equal(target, expected)


@ORDERS
def test_what_a_late_warp_reads_after_it_has_arrived_may_be_overwritten(reverse: bool) -> None:
    for bug, late_warp, is_right in (
        ("NONE", (0, 1), True),
        ("READS_LATE", None, True),
        ("READS_LATE", (0, 1), False),
    ):
        target, expected = ring(bug, late_warp=late_warp, reverse=reverse)
        assert np.array_equal(target, expected) == is_right


@ORDERS
@pytest.mark.parametrize("bug", ["NO_WAIT", "ARRIVES_FIRST"])
def test_what_has_not_landed_is_poison(bug: str, reverse: bool) -> None:
    target, _ = ring(bug, steps=3, reverse=reverse)
    assert np.isnan(target[-1]).all()


@ORDERS
@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("NO_WAIT", r".*got as many again before any thread has waited for it"),
        (
            "WRONG_PARITY",
            r"deadlock: threads 32-63 wait at mbarrier_test \(ring.cu:\d+\) for parity 0 of the "
            r"barrier at byte 1536 "
            r"of dynamic shared memory, with 0 of 32 arrivals; threads 0-31 wait at .* at byte "
            r"1560 of .* 0 of 32",
        ),
        (
            "TOO_MANY",
            r"mbarrier_arrive: expected 32 arrivals in a phase of the barrier at byte 1560 of "
            r"dynamic .*, got as",
        ),
        (
            "NOT_MADE",
            r"mbarrier_test: expected a barrier that mbarrier_init made, got none at byte 1576 "
            r"of dynamic",
        ),
        (
            "MADE_TWICE",
            r"mbarrier_init: there is a barrier at byte 15\d\d of dynamic shared memory already",
        ),
        (
            "OVERWRITTEN",
            r"mbarrier_arrive: the barrier at byte 1560 of dynamic shared memory was overwritten",
        ),
        (
            "MISALIGNED",
            r"mbarrier_arrive: expected a barrier in 8 aligned bytes of shared memory, got 0x",
        ),
        (
            "NOT_SHARED",
            r"mbarrier_arrive: expected a barrier in 8 aligned bytes of shared memory, got 0x",
        ),
        ("NO_PARITY", r"mbarrier_test: expected a parity of 0 or 1, got 2"),
        ("NO_THREADS", r"mbarrier_init: expected 1 to 1048575 arrivals, got 0"),
        (
            "LATE_COPIES",
            r"copy_async_arrive: expected 32 .* got one more, while copies or bytes are under way",
        ),
    ],
)
def test_barriers_used_wrongly(bug: str, message: str, reverse: bool) -> None:
    with pytest.raises(DeviceError, match=r"^kernel ring, block \(0, 0, 0\).*: " + message):
        ring(bug, reverse=reverse)


@ORDERS
@pytest.mark.parametrize("bug", ["WRONG_PARITY", "NO_WAIT"])
def test_all_asleep_is_a_deadlock_before_sm80(bug: str, reverse: bool) -> None:
    with pytest.raises(
        DeviceError, match=r"deadlock: threads 0-\d+ wait at __nanosleep \(before_sm80.cuh:\d+\)"
    ):
        ring(bug, reverse=reverse, arch="sm_75")


# --------------------------------------------------------------------------------------------------
# clusters


def exchange(
    bug: str = "NONE",
    *,
    cluster: int = 4,
    num_clusters: int = 2,
    steps: int = 5,
    is_cooperative: bool = False,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what exchange.cu makes of random numbers, and what it should."""
    source = (
        np.random.default_rng(0).standard_normal((num_clusters, cluster, 128)).astype(np.float32)
    )
    target, expected = np.zeros_like(source), source.astype(float)
    Device(**settings).run(
        "exchange",
        target,
        source,
        steps,
        grid=num_clusters * cluster,
        block=64,
        shared=2 * cluster * 512 + 16,
        cluster=cluster,
        is_cooperative=is_cooperative,
        BUG=bug,
        CLUSTER=str(cluster),
    )
    for _ in range(steps):
        expected = expected.sum(axis=1, keepdims=True) / 2 + np.arange(cluster)[:, None]
    return target, expected


@ORDERS
@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
def test_blocks_of_a_cluster_exchange_numbers(reverse: bool, cluster: int) -> None:
    target, expected = exchange(cluster=cluster, reverse=reverse)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


@ORDERS
def test_clusters_that_take_turns_keep_apart(reverse: bool) -> None:
    target, expected = exchange(num_clusters=3, is_cooperative=True, reverse=reverse)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


@ORDERS
@pytest.mark.parametrize("cluster", [1, 4])
def test_a_wait_that_comes_late_shows_poison(cluster: int, reverse: bool) -> None:
    target, _ = exchange("LATE_WAIT", cluster=cluster, reverse=reverse)
    assert np.isnan(target).all()


# A phase that nobody waits for, before which more comes.
ONCE_MORE = (
    r"(mbarrier_expect: expected 1 arrivals in a phase of the barrier at byte 4096 .*, got one "
    r"more, while"
    r"|store_async_pair: something is on its way already)"
)


@pytest.mark.in_turns(6)
@ORDERS
@pytest.mark.parametrize(
    ("bug", "message"),
    [
        # A block that is ahead overwrites what others have not read.
        (
            "ONE_PLACE",
            r"store_async_pair: something is on its way already to the 8 bytes from byte \d+ of "
            r"dynamic",
        ),
        ("NO_WAIT", ONCE_MORE),
        ("WRONG_PARITY", ONCE_MORE),  # which is complete before the first phase is
        (
            "NO_LAST_WAIT",
            r"the block leaves while 512 bytes are on their way to it, for which nobody",
        ),
        (
            "TOO_FEW_BYTES",
            r"store_async\w*: expected 2044 bytes in a phase of the barrier at byte 4096 of "
            r"dynamic shared memory.*, "
            r"got 2048",
        ),
        (
            "TOO_MANY_BYTES",
            r"deadlock: in blocks 0-3 of the cluster threads 0-63 wait at mbarrier_test "
            r"\(exchange.cu:\d+\) for parity "
            r"0 of the barrier at byte 4096 of dynamic shared memory, with 1 of 1 arrivals and "
            r"2048 of 2052 bytes",
        ),
        (
            "OTHER_BARRIER",
            r"store_async\w*: expected a barrier of block 0, to which the bytes go, got one of "
            r"block 1",
        ),
        ("NO_FIRST_BARRIER", r"store_async\w*: block [01] of the cluster has not begun"),
        ("BARRIER_OF_BLOCK", r"store_async_pair: block \d of the cluster has not begun"),
        (
            "LEAVES_EARLY",
            r"deadlock: in block 1 of the cluster threads 0-63 have left the kernel; in blocks 0, "
            r"2-3 of the cluster "
            r"threads 0-63 wait at cluster_barrier \(exchange.cu:\d+\)",
        ),
        (
            "LEAVES_AFTER_A_STEP",
            r"(store_async_pair: block 1 of the cluster has left the kernel|the block leaves "
            r"while \d+ bytes)",
        ),
        ("STORES_LATE", r"store_async_pair: block 0 of the cluster has left the kernel"),
        (
            "PAST_THE_END",
            r"store_async_pair: expected 8 bytes of the 4112 of shared memory of block [01] of "
            r"the cluster",
        ),
        ("MISALIGNED", r"store_async_pair: expected an address aligned to 8 bytes, got byte 4"),
        (
            "NO_ADDRESS",
            r"store_async_pair: expected an address that cluster_address gave, got 0x00000010",
        ),
        ("NO_SUCH_BLOCK", r"cluster_address: expected a block below 4 of the cluster, got \d"),
    ],
)
def test_clusters_used_wrongly(bug: str, message: str, reverse: bool) -> None:
    with pytest.raises(DeviceError, match=r"^kernel exchange, block \(\d, 0, 0\).*: " + message):
        exchange(bug, reverse=reverse)
    target, expected = exchange(reverse=reverse)  # the next launch runs
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "grid", "cluster", "message"),
    [
        (
            "exchange",
            6,
            4,
            "expected clusters of 1, 2, 4, 8 or 16 blocks, .* got 4 of 6",
        ),
        (
            "exchange",
            6,
            3,
            "expected clusters of 1, 2, 4, 8 or 16 blocks, .* got 3 of 6",
        ),
        (
            "exchange",
            32,
            32,
            "expected clusters of 1, 2, 4, 8 or 16 blocks, .* got 32 of 32",
        ),
        (
            "staged_copy",
            2,
            2,
            r"expected only dynamic shared memory in blocks of a cluster, got \d+ static",
        ),
    ],
)
def test_launches_of_clusters_beyond_the_limits(
    kernel: str, grid: int, cluster: int, message: str
) -> None:
    defines = {"BUG": "NONE", "CLUSTER": "4", "PIECE": "4", "WAIT": "1"}
    with pytest.raises(DeviceError, match=f"kernel {kernel}: {message}"):
        Device().run(kernel, grid=grid, cluster=cluster, **defines)


# ------------------------------------------------------------------------------------- blocks that
# are all resident


def together(
    bug: str = "NONE", *, num_blocks: int = 3, is_cooperative: bool = True, **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return what together.cu makes of the threads' numbers in four steps, and what it should."""
    target, places = (
        np.zeros((num_blocks, 32), np.uint32),
        np.zeros((2, num_blocks, 32, 4), np.uint32),
    )
    Device(**settings).run(
        "together", target, places, 4, grid=num_blocks, is_cooperative=is_cooperative, BUG=bug
    )
    expected = np.tile(np.arange(32), (num_blocks, 1))
    for _ in range(4):
        expected = expected.sum(axis=0) + np.arange(num_blocks)[:, None]
    return target, expected


@ORDERS
@pytest.mark.parametrize("num_blocks", [1, 3, 40])
def test_blocks_that_are_all_resident_exchange_numbers(num_blocks: int, reverse: bool) -> None:
    np.testing.assert_array_equal(*together(num_blocks=num_blocks, reverse=reverse))


@ORDERS
@pytest.mark.parametrize(
    ("bug", "is_cooperative", "message"),
    [
        (
            "SILENT",
            True,
            r"deadlock: in blocks 0-2 threads 0-31 wait at let_others_run \(together.cu:\d+\)",
        ),
        # A block overwrites what another has not read, which then waits for a step that is over.
        ("ONE_PLACE", True, r"deadlock: .*threads 0-31 wait at let_others_run"),
        (
            "NONE",
            False,
            r"deadlock: threads 0-31 wait at let_others_run",
        ),  # the others have not begun
    ],
)
def test_resident_blocks_used_wrongly(
    bug: str, is_cooperative: bool, message: str, reverse: bool
) -> None:
    with pytest.raises(DeviceError, match=r"^kernel together.*: " + message):
        together(bug, is_cooperative=is_cooperative, reverse=reverse)
    np.testing.assert_array_equal(*together(reverse=reverse))  # the next launch runs


# Long launches count more than 2**32 arrivals.
@ORDERS
@pytest.mark.parametrize("first", [0, 2**32 - 4, 2**32 - 9])
def test_turns_go_on_when_their_counter_overflows(first: int, reverse: bool) -> None:
    blocks = np.arange(3, dtype=np.uint32)
    target, places, turn = np.zeros(3, np.uint32), np.zeros(6, np.uint32), np.array([first], "u4")
    Device(reverse=reverse).run(
        "turns", target, places, turn, first - 2**32, 8, grid=3, is_cooperative=True
    )
    expected = blocks
    for _ in range(8):
        expected = expected.sum(dtype=np.uint32) + blocks
    np.testing.assert_array_equal(target, expected)
    assert turn == (first + 24) % 2**32


def test_resident_blocks_beyond_the_limits() -> None:
    words = r"expected blocks in a line with at most 16384 threads at once, got \(513, 1, 1\) of 32"
    with pytest.raises(DeviceError, match=words):
        together(num_blocks=513)


# --------------------------------------------------------------------------------------------------
# planted bugs

BUGS = {
    "no barrier": 1,
    "uninitialised": 2,
    "past the end of a template's array": 3,
    "past the end of a static array": 4,
    "past the end of dynamic shared memory": 5,
    "past the end of global memory": 6,
    "barrier in a branch": 7,
    "barrier after a return": 8,
    "different barriers": 9,
    "deadlock": 10,
    "shuffle without a lane": 11,
    "mask without the own lane": 12,
    "spinning": 13,
    "division by zero": 14,
    "null pointer": 15,
    "deep recursion": 16,
    "misaligned vector": 17,
    "overflow of a signed number": 18,
    "past the end of a row": 19,
    "no barrier before reuse": 20,
    "more threads than the compiler is told": 21,
}


def run_broken(bug: str, *, n: int = 64, **settings: Any) -> np.ndarray:
    """Return the output of broken.cu with one of its bugs."""
    out, flag = np.zeros(n, np.float32), np.zeros(1, np.uint32)
    Device(**settings).run("broken", out, BUGS[bug], n, 0, flag, block=n, shared=4 * n)
    return out


def test_a_missing_barrier_shows_in_one_of_the_orders() -> None:
    forward, reverse = (run_broken("no barrier", reverse=order) for order in (False, True))
    right = 1.0 + (np.arange(64) + 1) % 64
    assert np.isnan(forward).sum() == 63  # threads read what the next one has not written yet
    np.testing.assert_array_equal(reverse[:-1], right[:-1])
    assert not np.array_equal(forward, reverse, equal_nan=True)


@ORDERS
def test_a_missing_barrier_before_reuse_shows(reverse: bool) -> None:
    """A warp that is ahead overwrites what the other has not read."""
    out = run_broken("no barrier before reuse", reverse=reverse)
    assert (out == (7.0 if reverse else 8.0)).all()


def test_memory_that_nobody_wrote_is_nan() -> None:
    out = run_broken("uninitialised")
    assert np.flatnonzero(np.isnan(out)).tolist() == [5]
    memory = EmulatedRuntime().allocate(400)
    host = np.empty(100, np.float32)
    EmulatedRuntime().download(host, memory.pointer)
    assert np.isnan(host).all()


@ORDERS
@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (
            "barrier in a branch",
            r"deadlock: threads 32-63 wait at __syncthreads \(broken.cu:\d+\); threads 0-31 have "
            r"left the kernel",
        ),
        (
            "barrier after a return",
            r"deadlock: threads 0-2, 4-63 wait at __syncthreads \(broken.cu:\d+\); thread 3 has "
            r"left the kernel",
        ),
        (
            "different barriers",
            r"different barriers: thread 0 waits at __syncthreads \(broken.cu:\d+\); threads "
            r"1-63 wait at __sync",
        ),
        (
            "deadlock",
            r"deadlock: threads 1-63 wait at __syncthreads \(broken.cu:\d+\); thread 0 waits at "
            r"__syncwarp \(",
        ),
        (
            "shuffle without a lane",
            r"deadlock: threads 0-6, 8-31 wait at __shfl_down_sync \(broken.cu:\d+\); threads 7, "
            r"32-63 have left",
        ),
        (
            "mask without the own lane",
            r"__shfl_sync: expected a mask with this thread's own lane, got 0x00000001",
        ),
        ("spinning", r"more than 1048576 atomic operations without a barrier"),
        pytest.param(
            "division by zero",
            r"an integer was divided by zero",
            marks=pytest.mark.skipif(
                platform.machine() != "x86_64", reason="this processor does not trap it"
            ),
        ),
        ("null pointer", r"Segmentation fault at address \(nil\)"),
        (
            "deep recursion",
            r"stack overflow: a thread's local variables take more than 262144 bytes",
        ),
        (
            "more threads than the compiler is told",
            r"__builtin_assume: expected threadIdx\.x < NUM_THREADS",
        ),
    ],
)
def test_what_would_hang_or_crash_is_an_error(bug: str, message: str, reverse: bool) -> None:
    with pytest.raises(DeviceError, match=r"^kernel broken, block \(0, 0, 0\).*: " + message):
        run_broken(bug, reverse=reverse)
    assert np.isnan(run_broken("uninitialised", reverse=reverse)).sum() == 1  # the next launch runs


def test_a_write_past_dynamic_shared_memory_is_an_error_without_the_sanitizer() -> None:
    with pytest.raises(
        DeviceError, match="wrote past the end of its 256 bytes of dynamic shared memory"
    ):
        run_broken("past the end of dynamic shared memory")


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        ((1, 1, 1), (129, 1, 1), 0, r"expected a block of 1 to 128 threads.*got \(129, 1, 1\)"),
        ((1, 1, 1), (0, 1, 1), 0, r"expected a block of 1 to 128 threads.*got \(0, 1, 1\)"),
        ((0, 1, 1), (1, 1, 1), 0, r"expected a grid from \(1, 1, 1\).*got \(0, 1, 1\)"),
        ((1, 65536, 1), (1, 1, 1), 0, r"expected a grid .*got \(1, 65536, 1\)"),
        (
            (1, 1, 1),
            (1, 1, 1),
            227 * 1024,
            r"expected at most 232448 bytes of shared memory, got \d+ static",
        ),
    ],
)
def test_launches_beyond_the_limits(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, message: str
) -> None:
    runtime = EmulatedRuntime(folder=PLANTED)
    with pytest.raises(DeviceError, match=f"kernel broken: {message}"):
        runtime.launch(runtime.load("broken", ()), grid, block, shared, 0)


def test_a_kernel_that_does_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong(float* x) { *x = __expf(1.0f); }\n')
    with pytest.raises(CompileError, match=r"g\+\+ rejected wrong(.|\n)*__expf"):
        build(source, "wrong", {})


def test_libraries_are_cached_until_a_header_changes(tmp_path: Path) -> None:
    source, header = tmp_path / "kernel.cu", tmp_path / "part.cuh"
    source.write_text(
        '#include "part.cuh"\nextern "C" __global__ void kernel(float* x) { *x = VALUE; }\n'
    )
    header.write_text("#define VALUE 1\n")
    first = build(source, "kernel", {})
    changed = first.stat().st_mtime_ns
    assert build(source, "kernel", {}) == first
    assert first.stat().st_mtime_ns == changed
    header.write_text("#define VALUE 2\n")
    assert build(source, "kernel", {}) != first


def test_two_at_once_compile_a_library_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append(command)
        time.sleep(0.05)  # in which the other begins
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    both = [Thread(target=compile_once, args=([], tmp_path / "library.so")) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(calls) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["library.so"]


# --------------------------------------------------------------------------------------------------
# sanitizer


needs_sanitizer = pytest.mark.skipif(
    gxx_missing() is None and sanitizer_missing() is not None,
    reason="this g++ comes without libasan",
)


SANITIZER_REPORTS = {
    "past the end of a template's array": "AddressSanitizer: global-buffer-overflow",
    "past the end of a static array": "AddressSanitizer: global-buffer-overflow",
    "past the end of a row": "index 32 out of bounds",
    "past the end of dynamic shared memory": "AddressSanitizer: heap-buffer-overflow",
    "past the end of global memory": "AddressSanitizer: heap-buffer-overflow",
    "misaligned vector": "misaligned address",
    "overflow of a signed number": "signed integer overflow",
}

# A report ends its process, so each mistake is made in a fork of the one that compiled and loaded
# everything.
MISTAKES = """
import os, sys
from emulator.test_emulator import *
run_broken("uninitialised")
for bug in SANITIZER_REPORTS:
    if os.fork() == 0:
        run_broken(bug, n=32)
        os._exit(0)
    status = os.wait()[1]
    print(f"=== {bug}: status {status}", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def reports() -> dict[str, tuple[str, str]]:
    """Return what the sanitizer wrote about each mistake, and the status of the process that made
    it.
    """
    pieces = run_sanitized(["-W", "ignore", "-c", MISTAKES], timeout=120).stderr.split("=== ")
    found = {}
    for text, head in itertools.pairwise(pieces):
        bug, status = head.splitlines()[0].split(": status ")
        found[bug] = (text, status)
    return found


@pytest.mark.slow
@pytest.mark.in_turns(4)
@needs_sanitizer
@pytest.mark.parametrize("bug", SANITIZER_REPORTS)
def test_the_sanitizer_catches(bug: str, reports: dict[str, tuple[str, str]]) -> None:
    text, status = reports[bug]
    assert status != "0"
    assert SANITIZER_REPORTS[bug] in text
    lines = (PLANTED / "broken.cu").read_text().splitlines()
    planted = next(i for i, line in enumerate(lines, 1) if f"(bug == {BUGS[bug]}" in line)
    assert f"broken.cu:{planted}" in text


SOUND = """
from emulator.test_emulator import *
for reverse in (False, True):
    assert np.isnan(run_broken("uninitialised", reverse=reverse)).sum() == 1
    with pytest.raises(DeviceError, match="thread 3 has left"):
        run_broken("barrier after a return", reverse=reverse)
    test_shuffles_votes_and_counting_barriers(reverse)
    test_copy_async(reverse, 4)
    test_a_ring_of_buffers_between_barriers(reverse, "sm_75")
    test_a_ring_of_buffers_between_barriers(reverse, "sm_90a")
    test_blocks_of_a_cluster_exchange_numbers(reverse, 4)
    test_a_wait_that_comes_late_shows_poison(4, reverse)
    with pytest.raises(DeviceError, match="block 0 of the cluster has left"):
        exchange("STORES_LATE", reverse=reverse)
    test_blocks_of_a_cluster_exchange_numbers(reverse, 4)
    test_clusters_that_take_turns_keep_apart(reverse)
    test_blocks_that_are_all_resident_exchange_numbers(3, reverse)
print("came to its end")
"""


@pytest.mark.slow
@needs_sanitizer
def test_sound_kernels_pass_the_sanitizer() -> None:
    """Barriers, collectives, copies, clusters, failed launches and those after them: the sanitizer
    keeps silent.
    """
    result = run_sanitized(["-c", SOUND], timeout=120)
    assert result.returncode == 0, result.stderr
    assert "came to its end" in result.stdout


# --------------------------------------------------------------------------------------------------
# graphs


def test_a_graph_repeats_launches_with_the_arguments_of_their_capture() -> None:
    ops = CudaBackend(EmulatedRuntime())
    x, y = ops.asarray(np.arange(4.0)), ops.asarray(np.zeros(4))
    total, write = ops.zeros((), "float64"), ops.kernel("write_number")
    with ops.runtime.capture() as graph:
        ops.assign(y, x)
        write(1, 1, total, 5.0)
        ops.runtime.fill(x.pointer, 8)
        with pytest.raises(DeviceError, match="captured on emulator, got a download of 32 bytes"):
            y.numpy()
        with pytest.raises(DeviceError, match="captured on emulator, got an allocation of 8 bytes"):
            ops.zeros((), "float64")
    write(1, 1, total, 7.0)
    np.testing.assert_array_equal(y.numpy(), np.zeros(4))
    assert total.numpy() == 7
    ops.assign(x, ops.asarray(np.arange(1.0, 5)))
    graph.launch()
    np.testing.assert_array_equal(y.numpy(), [1, 2, 3, 4])
    np.testing.assert_array_equal(x.numpy(), [0, 2, 3, 4])
    assert total.numpy() == 5
    assert [name for name, _ in graph.nodes] == ["copy", "write_number", "fill"]


@pytest.mark.parametrize("at", [0, 3])
def test_a_graph_finds_memory_that_has_gone(at: int) -> None:
    ops = CudaBackend(EmulatedRuntime())
    numbers, write = ops.zeros((5,), "float64"), ops.kernel("write_number")
    with ops.runtime.capture() as graph:
        write(1, 1, numbers[at], 5.0)
    graph.launch()
    del numbers
    with pytest.raises(
        DeviceError, match="expected the memory of a graph to be there, got that of write_number"
    ):
        graph.launch()


# -------------------------------------------------------------------------------------------------
# late writes


@ORDERS
@pytest.mark.parametrize("has_fences", [True, False])
def test_what_other_blocks_see_without_a_fence_comes_late(reverse: bool, has_fences: bool) -> None:
    blocks = np.arange(12)
    left, sums = np.zeros(12, np.int32), np.zeros(13, np.int32)
    arrivals, marks = np.zeros(1, np.uint32), np.zeros((12, 2), np.uint32)
    device = Device(reverse=reverse, late_writes=True)
    sizes: dict[str, Any] = {"grid": 12, "block": 1, "is_cooperative": True}
    device.run("late", left, sums, arrivals, marks, FENCES=str(int(has_fences)), **sizes)
    np.testing.assert_array_equal(left, blocks + 1)  # when the grid has ended, all of it is there
    np.testing.assert_array_equal(marks, np.stack([blocks + 7, np.ones(12)], axis=1))
    assert (sums[0] == left.sum(), (sums[1:12] == blocks[1:] + 7).all()) == (has_fences, has_fences)
