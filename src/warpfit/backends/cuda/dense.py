"""Matrix products with bias and activation, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from warpfit.backends.base import IDENTITY, Activation, Array
from warpfit.backends.checks import check_linear, check_linear_backward, check_matmul
from warpfit.backends.cuda import autotune
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.cuda.launch import Kernel
from warpfit.backends.cuda.matmul import candidates, configure, configure_for
from warpfit.backends.cuda.matmul_config import MatmulConfig
from warpfit.backends.cuda.matmul_wgmma_config import WgmmaConfig
from warpfit.backends.cuda.tensor_maps import MapOps

# How many products' launches a backend caches.
MOST_PRODUCTS = 4096

# Of a product that is tuned: configurations that are measured, calls that are timed together, and
# how often they are.
MOST_TUNED, TUNED_CALLS, TUNED_ROUNDS = 8, 20, 5


class _Launch(NamedTuple):
    """A product's kernel, and how it is launched."""

    config: MatmulConfig | None = None  # None if there is nothing to compute
    kernel: Kernel | None = None
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0
    cluster: int = 1
    # num_partials and num_counters: numbers and counters that sums over slices need, and a queue of
    # tiles.
    num_partials: int = 0
    num_counters: int = 0
    sizes: tuple[int, ...] = ()  # the kernel's last arguments


class _Given(NamedTuple):
    """A product's arrays, operands with leading dimensions, and the numbers of its epilogue."""

    a: tuple[DeviceArray, int]
    b: tuple[DeviceArray, int]
    out: DeviceArray
    bias: DeviceArray | None
    saved: DeviceArray | None
    z: DeviceArray | None
    alpha: float
    slope: float


class _Workspace(NamedTuple):
    """What a product needs beside its arrays: for sums over slices, and for an operand to turn."""

    partials: DeviceArray | None
    arrivals: DeviceArray | None
    turned: DeviceArray | None


class DenseOps(MapOps):
    """y = f(x @ w + b).

    Parameters
    ----------
    runtime, reuse, **settings
        As `ArrayOps` takes them.
    product_kernel : str, optional
        The kernel that computes all products, in place of the one that suits each best.
    shares_device : bool
        Whether other kernels may be on some multiprocessors: blocks take tiles as they come then.
    """

    def __init__(
        self,
        runtime: Any,
        reuse: bool = False,
        *,
        product_kernel: str | None = None,
        shares_device: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(runtime, reuse, **settings)
        self.product_kernel, self.shares_device = product_kernel, shares_device
        self._products: dict[Any, _Launch] = {}

    def matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        check_matmul(a, b, transpose_a, transpose_b)
        out = self.empty(
            (a.shape[1 if transpose_a else 0], b.shape[0 if transpose_b else 1]), a.dtype
        )
        return self._product(a, b, out, transpose_a, transpose_b)

    def linear_forward(
        self, x: Array, w: Array, b: Array | None, activation: Activation = IDENTITY
    ) -> tuple[Array, Array | None]:
        check_linear(x, w, b)
        shape = (x.shape[0], w.shape[1])
        y = self.empty(shape, x.dtype)
        z = self.empty(shape, x.dtype) if activation.needs_input else None
        self._product(x, w, y, epilogue="epilogue_activation", activation=activation, bias=b, z=z)
        return y, z

    def linear_backward(
        self,
        dz: Array,
        x: Array,
        w: Array,
        *,
        needs_dx: bool = True,
        needs_db: bool = True,
        x_activation: Activation = IDENTITY,
    ) -> tuple[Array | None, Array, Array | None]:
        check_linear_backward(dz, x, w, x_activation)
        dx = self.linear_backward_input(dz, x, w, x_activation) if needs_dx else None
        # Parameters' gradients leave half precision, and with it the scale that kept them from
        # underflow.
        dtype = acc_dtype(dz.dtype)
        scale = 1 / self.loss_scale if dz.itemsize == 2 else 1.0
        joined = self.joined_updates and self.joined_updates.gradients(dz, x, w, scale)
        if joined:
            return dx, joined[0], joined[1] if needs_db else None
        dw = self._product(
            x, dz, self.empty((x.shape[1], dz.shape[1]), dtype), transpose_a=True, alpha=scale
        )
        return dx, dw, self.column_sums(dz, dtype, scale) if needs_db else None

    def linear_backward_input(
        self, dz: Array, x: Array, w: Array, x_activation: Activation = IDENTITY
    ) -> Array:
        check_linear_backward(dz, x, w, x_activation)
        dx = self.empty((dz.shape[0], w.shape[0]), dz.dtype)
        if x_activation == IDENTITY:
            return self._product(dz, w, dx, transpose_b=True)
        settings: dict[str, Any] = {"epilogue": "epilogue_mask", "activation": x_activation}
        return self._product(dz, w, dx, transpose_b=True, saved=self.contiguous(x), **settings)

    def _product(
        self,
        a: DeviceArray,
        b: DeviceArray,
        out: DeviceArray,
        transpose_a: bool = False,
        transpose_b: bool = False,
        *,
        epilogue: str = "epilogue_store",
        activation: Activation = IDENTITY,
        bias: DeviceArray | None = None,
        z: DeviceArray | None = None,
        saved: DeviceArray | None = None,
        alpha: float = 1.0,
    ) -> DeviceArray:
        """Write the epilogue of op(a) @ op(b) to `out`, which is contiguous."""
        a, lda, transpose_a = self._operand(a, transpose_a)
        b, ldb, transpose_b = self._operand(b, transpose_b)
        places = a.pointer | b.pointer | out.pointer
        if bias is not None:
            bias = self.contiguous(bias)
        for array in (bias, z, saved):
            places |= 0 if array is None else array.pointer
        dtypes = (a.dtype, out.dtype)
        operands = (a.shape, b.shape, lda, ldb, transpose_a, transpose_b, dtypes, not places & 15)
        key = (operands, epilogue, activation.name, bias is None, z is None)
        given = _Given((a, lda), (b, ldb), out, bias, saved, z, alpha, activation.slope)
        launch = self._products.get(key)
        if launch is None:
            settings = (epilogue, activation.name, bias is not None, z is not None)
            if len(self._products) >= MOST_PRODUCTS:
                self._products.clear()
            launch = self._products[key] = self._configured(operands, settings, given)
        if launch.kernel is None:
            return out
        self._start(launch, given, self._workspace(launch, given, self.empty))
        return out

    def _workspace(
        self, launch: _Launch, given: _Given, empty: Callable[[tuple[int, ...], Any], DeviceArray]
    ) -> _Workspace:
        partials = arrivals = turned = None
        dtype = given.a[0].dtype
        if launch.num_partials:
            partials = empty((launch.num_partials,), acc_dtype(dtype))
        if launch.num_counters:
            arrivals = self.arrivals(launch.num_counters)
        if isinstance(launch.config, WgmmaConfig) and launch.config.turns_b:
            operand, _ = given.a if launch.config.swapped else given.b
            turned = empty(operand.shape[::-1], dtype)
        return _Workspace(partials, arrivals, turned)

    def _start(self, launch: _Launch, given: _Given, workspace: _Workspace) -> None:
        (a, _), (b, _), out, bias, saved, z, alpha, slope = given
        partials, arrivals, turned = workspace
        maps = self._maps_of(launch.config, given, turned)
        launch.kernel(  # type: ignore[misc]  # there is something to compute
            launch.grid,
            launch.block,
            *(
                *(maps or (a, b)),
                out,
                bias,
                saved,
                z,
                alpha,
                slope,
                partials,
                arrivals,
                *launch.sizes,
            ),
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
        )

    def _maps_of(
        self, config: MatmulConfig | None, given: _Given, turned: DeviceArray | None
    ) -> tuple[bytes, ...]:
        """Return tensor maps of operands, result and `saved`, if any are taken; fill `turned`."""
        if not isinstance(config, WgmmaConfig):
            return ()
        a_box, b_box, c_box = config.boxes
        out, saved = given.out, given.saved
        first, second = (given.b, given.a) if config.swapped else (given.a, given.b)
        if turned is not None:
            x, _ = second
            self._copy_into(turned, x.view(x.shape[::-1], x.strides[::-1]))
            second = turned, turned.shape[1]
        c_map = self.tensor_map_of(out, out.shape[1], c_box)
        saved_map = c_map if saved is None else self.tensor_map_of(saved, saved.shape[1], c_box)
        a_map, b_map = (
            self.tensor_map_of(*operand, box, config.map_dtype)
            for operand, box in ((first, a_box), (second, b_box))
        )
        return a_map, b_map, c_map, saved_map

    def _operand(self, x: DeviceArray, transposed: bool) -> tuple[DeviceArray, int, bool]:
        """Return x, or its transpose, with rows in memory, their distance, and which of both."""
        if x.is_contiguous:
            return x, x.shape[1], transposed
        rows, columns = x.strides
        if columns == x.itemsize and rows >= x.shape[1] * x.itemsize:
            return x, rows // x.itemsize, transposed
        if rows == x.itemsize and columns >= x.shape[0] * x.itemsize:
            return x.view(x.shape[::-1], x.strides[::-1]), columns // x.itemsize, not transposed
        return self.contiguous(x), x.shape[1], transposed

    def _configured(
        self, operands: tuple[Any, ...], epilogue: tuple[str, str, bool, bool], given: _Given
    ) -> _Launch:
        """Return how to launch a product; its kernel is None if there is nothing to compute."""
        a_shape, b_shape, lda, ldb, transpose_a, transpose_b, (dtype, out_dtype), is_aligned = (
            operands
        )
        k, m = a_shape if transpose_a else a_shape[::-1]
        n = b_shape[0 if transpose_b else 1]
        if not m or not n:
            return _Launch()
        # Whether every row of every matrix begins and ends at a multiple of 16 bytes.
        rows = (lda | ldb | a_shape[1] | b_shape[1]) * dtype.itemsize | n * out_dtype.itemsize
        settings: dict[str, Any] = {
            "dtype": dtype.name,
            "precision": self.precision,
            "transpose_a": transpose_a,
            "transpose_b": transpose_b,
            "num_multiprocessors": self.runtime.num_multiprocessors,
            "arch": self.runtime.arch,
            "vector": is_aligned and not rows & 15,
            "out": out_dtype.name,
        }

        def launch_of(config: MatmulConfig) -> _Launch:
            kernel = self.kernel(
                config.kernel, **product_defines(config, out_dtype.name, *epilogue)
            )
            sizes = config.sizes(m, n, k, lda, ldb)
            num_counters = config.counters(m, n, queues=self.shares_device)
            workspace = config.partials(m, n), num_counters
            shape = config.grid(m, n), config.block, config.shared_bytes, config.cluster
            return _Launch(config, kernel, *shape, *workspace, sizes)

        if self.product_kernel is not None:
            return launch_of(configure_for(self.product_kernel, m, n, k, **settings))
        if not autotune.is_asked_for():
            return launch_of(configure(m, n, k, **settings))
        configs = candidates(m, n, k, **settings)[:MOST_TUNED]
        question = f"{self.runtime.card}: {(m, n, k, lda, ldb)} {settings} {epilogue}"
        best = autotune.fastest(
            question, configs, lambda config: self._seconds_of(launch_of(config), given)
        )
        return launch_of(best)

    def _seconds_of(self, launch: _Launch, given: _Given) -> float:
        """Return how long a product takes on the device."""
        runtime = self.runtime
        workspace = self._workspace(launch, given, partial(DeviceArray.allocate, runtime))
        self._start(launch, given, workspace)
        with runtime.capture() as graph:
            for _ in range(TUNED_CALLS):
                self._start(launch, given, workspace)
        return min(runtime.seconds_of(graph.launch) for _ in range(TUNED_ROUNDS)) / TUNED_CALLS


def product_defines(
    config: MatmulConfig, out: str, epilogue: str, activation: str, has_bias: bool, store_z: bool
) -> dict[str, Any]:
    loads_saved = {"LOADS_SAVED": 1} if epilogue == "epilogue_mask" and config.stores_tensor else {}
    return {
        **config.defines(),
        **loads_saved,
        "OUT": out,
        "EPILOGUE": epilogue,
        "ACTIVATION": activation,
        "HAS_BIAS": int(has_bias),
        "STORE_Z": int(store_z),
    }
