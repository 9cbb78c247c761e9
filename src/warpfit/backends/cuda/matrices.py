"""Updates of whole matrices: lists of them, a launch for each product that one waits for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warpfit.backends.base import Array
from warpfit.backends.checks import check_matrix_update
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.dtypes import dtype_of
from warpfit.backends.cuda.launch import scalar
from warpfit.backends.cuda.matmul_mma_config import supports
from warpfit.backends.cuda.tensors import TENSOR_THREADS, plan_of
from warpfit.backends.matrix_updates import COEFFICIENTS, MatrixNumbers, matrix_of

# As in kernels/ops/optim/matrix_products.cu and matrix_tiles.cuh.
MAX_PRODUCTS, TILE, THREADS, STAGES = 32, 64, 256, 4
_COUNT, _PRODUCT = struct.Struct("=q"), struct.Struct("=6Q3d7i4xq")
LIST_BYTES = _COUNT.size + MAX_PRODUCTS * _PRODUCT.size

A_TRANSPOSED, B_TRANSPOSED = 1, 2


@dataclass(frozen=True)
class _Product:
    """An entry of the kernel's list, as it has it; what begins it are arrays."""

    a: DeviceArray
    b: DeviceArray
    c: DeviceArray
    shape: tuple[int, int, int]  # rows, columns, depth
    squares: tuple[DeviceArray, DeviceArray]  # of w, of d
    transposed: int = 0
    scale: float = 1.0
    power: int = 0
    added: DeviceArray | None = None
    added_scale: float = 0.0
    diagonal: float = 0.0
    normalizes: bool = False

    @property
    def num_tiles(self) -> int:
        return -(-self.shape[0] // TILE) * -(-self.shape[1] // TILE)

    def packed(self, first_block: int) -> bytes:
        arrays = (self.a, self.b, self.c, self.added, *self.squares)
        return _PRODUCT.pack(
            *(0 if each is None else each.pointer for each in arrays),
            *(self.scale, self.added_scale, self.diagonal),
            *(self.power, self.normalizes, len(self.squares[0])),
            *(*self.shape, self.transposed, first_block),
        )


@dataclass(frozen=True)
class _Matrix:
    """A parameter and its direction, and room for what an iteration computes."""

    w: DeviceArray
    x: tuple[DeviceArray, DeviceArray]  # the direction, and where the next step's goes
    # gram and polynomial (side, side).
    gram: DeviceArray
    polynomial: DeviceArray
    squares: tuple[DeviceArray, DeviceArray]  # sums of squares of parts of w, and of the direction
    factor: float

    @property
    def shape(self) -> tuple[int, int]:
        return matrix_of(self.w.shape)

    @property
    def is_tall(self) -> bool:
        return self.shape[0] > self.shape[1]

    def gram_product(self, step: int) -> _Product:
        """Return that of the direction with itself, in the first step of norm 1."""
        x, side, depth = self.x[step % 2], min(self.shape), max(self.shape)
        transposed = A_TRANSPOSED if self.is_tall else B_TRANSPOSED
        of_norm = 2 if step == 0 else 0
        return _Product(
            *(x, x, self.gram, (side, side, depth), self.squares, transposed), power=of_norm
        )

    def polynomial_product(self) -> _Product:
        """Return a I + b A + c A² of A."""
        a, b, c = COEFFICIENTS
        own, side = self.gram, len(self.gram)
        return _Product(
            *(own, own, self.polynomial, (side, side, side), self.squares),
            scale=c,
            added=own,
            added_scale=b,
            diagonal=a,
        )

    def next_direction(self, step: int, *, is_last: bool, normalizes: bool) -> _Product:
        """Return the polynomial times the direction; the last one updates w."""
        x, to, p = self.x[step % 2], self.x[(step + 1) % 2], self.polynomial
        rows, columns = self.shape
        operands = (x, p) if self.is_tall else (p, x)
        return _Product(
            *operands,
            self.w if is_last else to,
            (rows, columns, len(p)),
            self.squares,
            scale=self.factor if is_last else 1.0,
            power=int(step == 0),
            added=self.w if is_last else None,
            normalizes=normalizes,
        )


class MatrixOps(ArrayOps):
    """w ← w - step along directions whose singular values are about 1."""

    def update_matrices(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        averages: Sequence[Array],
        factors: Sequence[float],
        numbers: MatrixNumbers,
    ) -> None:
        check_matrix_update("update_matrices", factors, numbers, parameters, gradients, averages)
        kept = [idx for idx, w in enumerate(parameters) if w.size]
        own = [self.contiguous(parameters[idx]) for idx in kept]
        for dtype in dict.fromkeys(w.dtype for w in own):
            same = [place for place, w in enumerate(own) if w.dtype == dtype]
            self._update_alike(
                [own[place] for place in same],
                [gradients[kept[place]] for place in same],
                [averages[kept[place]] for place in same],
                [factors[kept[place]] for place in same],
                numbers,
            )
        for idx, w in zip(kept, own, strict=True):
            if w is not parameters[idx]:
                self._copy_into(parameters[idx], w)

    def _update_alike(
        self,
        parameters: list[DeviceArray],
        gradients: list[Array],
        averages: list[Array],
        factors: list[float],
        numbers: MatrixNumbers,
    ) -> None:
        dtype = parameters[0].dtype.name
        for first in range(0, len(parameters), MAX_PRODUCTS):
            some = slice(first, first + MAX_PRODUCTS)
            matrices = self._directions(
                parameters[some], gradients[some], averages[some], factors[some], numbers
            )
            for step in range(numbers.steps):
                is_last = step + 1 == numbers.steps
                self._multiply([each.gram_product(step) for each in matrices], dtype)
                self._multiply([each.polynomial_product() for each in matrices], dtype)
                products = [
                    each.next_direction(step, is_last=is_last, normalizes=numbers.normalizes)
                    for each in matrices
                ]
                self._multiply(products, dtype, numbers if is_last else None)

    def _directions(
        self,
        parameters: list[DeviceArray],
        gradients: list[Array],
        averages: list[Array],
        factors: list[float],
        numbers: MatrixNumbers,
    ) -> list[_Matrix]:
        """Move the averages, and return the directions of the step."""
        own = self._operands_of(parameters[0].dtype.name)
        directions = [self.empty(w.shape, own) for w in parameters]
        groups = (gradients, averages, directions, parameters)
        plan = plan_of(self, "update_matrices", groups, same_dtype=False)
        squares = self.empty((2, plan.num_blocks), "float64")
        (launch,) = plan.launches
        kernel = self.kernel("matrix_directions", DTYPE=launch.dtypes[0], DIRECTION=own)
        settings = (numbers.momentum, int(numbers.nesterov), squares)
        kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, *settings)
        for number, array, copy in plan.copies:
            if number == 1:
                self._copy_into(array, copy)
        sums = _parts_of(squares, launch.blocks)
        return [
            self._matrix(w, x, own, factor)
            for w, x, own, factor in zip(parameters, directions, sums, factors, strict=True)
        ]

    def _matrix(
        self,
        w: DeviceArray,
        x: DeviceArray,
        squares: tuple[DeviceArray, DeviceArray],
        factor: float,
    ) -> _Matrix:
        side = min(matrix_of(w.shape))
        gram, polynomial = (self.empty((side, side), x.dtype) for _ in range(2))
        directions = x, self.empty(w.shape, x.dtype)
        return _Matrix(w, directions, gram, polynomial, squares, factor)

    def _multiply(
        self, products: list[_Product], dtype: str, numbers: MatrixNumbers | None = None
    ) -> None:
        """Compute products of a dtype's directions; with numbers they are the updates."""
        if not products:
            return
        first_block, packed = 0, [_COUNT.pack(len(products))]
        for each in products:
            packed.append(each.packed(first_block))
            first_block += each.num_tiles
        rate, kept = (0.0, 1.0) if numbers is None else (numbers.rate, numbers.kept)
        rounds = self._operands_of(dtype) != dtype
        kernel = self.kernel(
            "matrix_products",
            DTYPE=dtype,
            UPDATES=int(numbers is not None),
            TENSOR_CORES=int(rounds),
        )
        filled = b"".join(packed).ljust(LIST_BYTES, b"\0")
        given = (filled, *scalar(rate), *scalar(kept))
        kernel(first_block, THREADS, *given, shared_bytes=_shared_bytes(dtype, rounds))

    def _operands_of(self, dtype: str) -> str:
        """Return the dtype of directions, and of their products: that of tensor cores where all
        other products are in half precision.
        """
        is_rounded = self.is_half and dtype == "float32"
        return "bfloat16" if is_rounded and supports(self.runtime.arch, "bfloat16") else dtype


def _shared_bytes(dtype: str, rounds: bool) -> int:
    """Return the bytes of both operands' tiles: in lines of 72 numbers, or of 65."""
    if rounds:
        return 2 * STAGES * TILE * (TILE + 8) * dtype_of("bfloat16").itemsize
    return 2 * 16 * (TILE + 1) * dtype_of(dtype).itemsize


def _parts_of(
    squares: DeviceArray, blocks: Sequence[int]
) -> Iterator[tuple[DeviceArray, DeviceArray]]:
    """Yield the sums of each tensor, of w and of d, one for each of its blocks."""
    first = 0
    for count in blocks:
        own = slice(first, first + count)
        yield squares[0][own], squares[1][own]
        first += count
