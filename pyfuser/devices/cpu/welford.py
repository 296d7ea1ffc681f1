"""Mean, squared deviation and count in one pass, over values, lanes and partial results.

Source: Chan, Golub and LeVeque (1979), "Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances": two triples combine as

    n = n1 + n2;  d = m2 - m1;  mean = m1 + d * n2/n;  M = M1 + M2 + d*d * n1*n2/n
"""

from __future__ import annotations

from ...dtypes import DataType
from .conversions import compute_type
from .llvm_writer import FunctionWriter, Value


def initial_welford(w: FunctionWriter, dtype: DataType, lanes: int) -> list[Value]:
    """The triple of no values."""
    zero = w.constant(0, compute_type(dtype, lanes))
    return [zero, zero, w.constant(0, compute_type(DataType.Int, lanes))]


def welford_of_values(w: FunctionWriter, value: Value, dtype: DataType) -> list[Value]:
    """The triples of one value each."""
    lanes = value.type.lanes
    zero = w.constant(0, compute_type(dtype, lanes))
    return [value, zero, w.constant(1, compute_type(DataType.Int, lanes))]


def combine_welford(
    w: FunctionWriter, a: list[Value], b: list[Value], dtype: DataType
) -> list[Value]:
    """The triple of the values of both."""
    count = w.add(a[2], b[2])
    element = compute_type(dtype).element
    n, n_a, n_b = (w.sitofp(v, element) for v in (count, a[2], b[2]))
    zero = w.constant(0, n.type)
    ratio = w.fdiv(n_b, n)
    ratio = w.select(w.fcmp("oeq", n, zero), zero, ratio)
    delta = w.fsub(b[0], a[0])
    mean = w.fadd(a[0], w.fmul(delta, ratio))
    # an empty side must not contribute its (meaningless) mean
    mean = w.select(w.fcmp("oeq", n_a, zero), b[0], mean)
    cross = w.fmul(w.fmul(delta, delta), w.fmul(n_a, ratio))
    cross = w.select(w.fcmp("oeq", w.fmul(n_a, n_b), zero), zero, cross)
    return [mean, w.fadd(w.fadd(a[1], b[1]), cross), count]


def reduce_welford_lanes(w: FunctionWriter, state: list[Value], dtype: DataType) -> list[Value]:
    """Combines the lanes, halving them."""
    while state[0].type.lanes > 1:
        pairs = [halves(w, v) for v in state]
        state = combine_welford(w, [low for low, _ in pairs], [high for _, high in pairs], dtype)
    return state


def halves(w: FunctionWriter, vector: Value) -> tuple[Value, Value]:
    """The lower and the upper lanes; scalars where there are two."""
    lanes = vector.type.lanes // 2
    if lanes == 1:
        return w.extractelement(vector, 0), w.extractelement(vector, 1)
    low, high = w.pieces(vector, lanes)
    return low, high
