"""Parts of an operation by several threads: each once, the same bits, errors that come through."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest

from warpfit.backends import Activation, NumpyBackend
from warpfit.backends.numpy import parallel, windows
from warpfit.backends.numpy.parallel import SumInOrder, each_part, each_rows, spans
from warpfit.blas import num_blas_threads, one_blas_thread

RELU = Activation("relu")


def use(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(parallel, "_num_threads", lambda: threads)
    monkeypatch.setattr(parallel, "_most_threads", lambda: threads)
    parallel._pool.cache_clear()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three threads, however many cores there are."""
    use(monkeypatch, 3)
    yield 3
    parallel._pool.cache_clear()


def test_every_part_is_done_once_by_several_threads(threads: int) -> None:
    all_there, done = Barrier(threads, timeout=20), []

    def begin() -> Callable[[int], None]:
        own = []

        def do(part: int) -> None:
            if not own:  # nobody goes on before all have begun
                all_there.wait()
            own.append(part)
            done.append((part, get_ident(), num_blas_threads()))

        return do

    each_part(range(50), begin)
    parts, idents, of_blas = zip(*done, strict=True)
    assert sorted(parts) == list(range(50))
    assert len(set(idents)) == threads
    assert set(of_blas) == {1}


def test_no_part_begins_nothing() -> None:
    each_part([], lambda: pytest.fail("there is nothing to do"))


def test_an_error_of_any_thread_comes_through(threads: int) -> None:
    def do(part: int) -> None:
        raise ArithmeticError(str(part))

    with pytest.raises(ArithmeticError):
        each_part(range(9), lambda: do)
    done: list[int] = []
    each_part(range(9), lambda: done.append)
    assert sorted(done) == list(range(9))


def test_threads_heed_numpys_error_state(threads: int) -> None:
    x = np.full((1 << 19, 2), 1e30, np.float32)
    with np.errstate(over="ignore"):
        each_rows(np.square, x, np.empty_like(x))
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        each_rows(np.square, x, np.empty_like(x))


def test_one_blas_thread_is_one_thread() -> None:
    with one_blas_thread():
        assert parallel._num_threads() == 1


def test_parts_are_added_in_their_order() -> None:
    total = np.zeros(1, np.float32)
    in_order, parts = SumInOrder(total), [np.float32([v]) for v in (1e8, 1.0, -1e8, 3.0)]
    for idx in (3, 1, 0, 2):
        in_order.add(idx, parts[idx])
    assert total.tolist() == [np.float32(1e8) + np.float32(1) - np.float32(1e8) + 3]


def test_spans_cover_a_length() -> None:
    assert [(span.start, span.stop) for span in spans(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    assert spans(0, 3) == []


def results(ops: NumpyBackend) -> list[Any]:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32)

    x, w, b, dz = drawn(10, 14, 14, 8), drawn(3, 3, 8, 16), drawn(16), drawn(10, 14, 14, 16)
    pads, pool = {"padding": (1, 1)}, {"kernel": (2, 2), "stride": (2, 2)}
    y, _ = ops.conv2d_forward(x, w, b, activation=RELU, **pads)
    best, places = ops.max_pool2d_forward(y, **pool)
    strided = {"stride": (2, 2), **pads}
    return [
        y,
        best,
        places,
        ops.conv2d_backward_input(dz, w, x.shape, x=np.abs(x), x_activation=RELU, **pads),
        ops.conv2d_backward_input(drawn(10, 7, 7, 16), w, x.shape, **strided),
        *ops.conv2d_backward_weight(dz, x, (3, 3), **pads),
        ops.max_pool2d_backward(best, places, y.shape, **pool),
        ops.activation_backward(RELU, dz, y, None, plus=y),
    ]


@pytest.mark.parametrize("block_bytes", [3 << 10, 40 << 10])
def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Blocks are parts of an image, or some images."""
    monkeypatch.setattr(windows, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(parallel, "PART_BYTES", block_bytes)
    found = []
    for count in (1, 2, 5):
        use(monkeypatch, count)
        ops = NumpyBackend(reuse=True)
        for _ in range(2):
            ops.begin_step()
            with one_blas_thread():  # also where one thread does all
                bits = [np.array(array).tobytes() for array in results(ops)]
        found.append(bits)
    parallel._pool.cache_clear()
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("m", "n", "k"), [(70, 900, 300), (900, 70, 300), (3, 5, 7), (0, 4, 2)])
def test_products_by_parts(threads: int, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    out = np.full((m, n), np.nan)
    assert parallel.multiply(a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-12, atol=1e-12)


def test_a_run_has_no_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_available", lambda: 5)
    ops, threads = NumpyBackend(), num_blas_threads()
    with ops.own_threads():
        ops.matmul(np.ones((2, 3)), np.ones((3, 2)))
        assert num_blas_threads() == threads  # which such products do not ask for
        ops.matmul(np.ones((80, 80)), np.ones((80, 80)))
        assert parallel._num_threads() == 5
        assert num_blas_threads() == 1
    assert num_blas_threads() == threads
