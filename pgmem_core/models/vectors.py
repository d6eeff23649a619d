"""The check that stands between a model's output and the store: finite, non-zero, of the right size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmem_core.errors import BadVector, DimensionMismatch
from pgmem_core.protocols import Vectors

__all__ = ["check_vector", "check_vectors"]


def check_vectors(vectors: Any, *, count: int, dimensions: int | None, model: str) -> Vectors:
    """Return the vectors as float32, shape (count, dimensions); `dimensions` None takes what the first has.

    `vectors`: an array or lists of numbers, one row a text. All or nothing: one bad row refuses the batch.

    Raises: DimensionMismatch; BadVector for NaN, infinity, zero, other things than numbers or the wrong
    count. Both name the row: "item 3 of 5".
    """
    array = _as_array(vectors, model)
    if array is None:  # ragged, or rows of a kind numpy cannot stack
        rows = list(vectors)
        _check_count(len(rows), count, model)
        found = [_row(row, _item(n, count), model) for n, row in enumerate(rows)]
        want = dimensions or len(found[0])
        for n, row in enumerate(found):
            _check_size(len(row), want, _item(n, count), model)
        array = np.stack(found)
    _check_count(len(array), count, model)
    if count == 0:
        return np.empty((0, dimensions or 0), dtype=np.float32)
    if array.ndim != 2:
        raise BadVector(f"embedder {model!r} gave an array of shape {array.shape}, wanted one row a text")
    if array.dtype.kind not in "fiu":
        raise BadVector(f"embedder {model!r} gave {array.dtype} values, wanted numbers")
    _check_size(array.shape[1], dimensions or array.shape[1], "each item" if count > 1 else "the vector", model)
    # A value beyond float32 becomes infinite here, and a length beyond it would make pgvector's cosine NaN.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = np.ascontiguousarray(array, dtype=np.float32)
        squares = np.einsum("ij,ij->i", result, result)
    bad = np.flatnonzero(~np.isfinite(squares) | (squares <= 0))
    if bad.size:
        n = int(bad[0])
        raise BadVector(f"embedder {model!r}: {_item(n, count)} {_fault(result[n])}; nothing was stored")
    return result


def check_vector(vector: Any, *, dimensions: int | None, model: str) -> Vectors:
    """Return one vector as float32, shape (dimensions,), under the same rules."""
    array = _as_array(vector, model)
    if array is None or array.ndim != 1:
        shape = "ragged" if array is None else array.shape
        raise BadVector(f"embedder {model!r}: one vector is a flat list of numbers, got shape {shape}")
    result: Vectors = check_vectors(array[np.newaxis], count=1, dimensions=dimensions, model=model)[0]
    return result


def _as_array(vectors: Any, model: str) -> NDArray[Any] | None:
    if isinstance(vectors, str | bytes) or not hasattr(vectors, "__len__"):
        raise BadVector(f"embedder {model!r} gave {type(vectors).__name__}, wanted one row a text")
    try:
        array = np.asarray(vectors)
    except ValueError:
        return None
    return None if array.dtype == object and array.ndim <= 1 else array


def _row(row: Any, item: str, model: str) -> NDArray[Any]:
    try:
        array = np.asarray(row)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise BadVector(f"embedder {model!r}: {item} is not a list of numbers ({type(row).__name__})")
    return array


def _check_count(got: int, want: int, model: str) -> None:
    if got != want:
        raise BadVector(f"embedder {model!r} gave {got} vectors for {want} texts")


def _check_size(got: int, want: int, item: str, model: str) -> None:
    if got == 0:
        raise BadVector(f"embedder {model!r}: {item} is empty")
    if got != want:
        raise DimensionMismatch(
            f"embedder {model!r}: {item} has {got} dimensions, wanted {want}; "
            f"one model name must stand for one size of vector"
        )


def _item(n: int, count: int) -> str:
    return f"item {n + 1} of {count}" if count > 1 else "the vector"


def _fault(row: Vectors) -> str:
    if np.isnan(row).any():
        return f"holds NaN at position {int(np.flatnonzero(np.isnan(row))[0])}"
    if np.isinf(row).any():
        return f"holds infinity at position {int(np.flatnonzero(np.isinf(row))[0])}"
    if not row.any():
        return "is all zeros, which has no direction to compare"
    return "is too long or too short for float32; normalise it"
