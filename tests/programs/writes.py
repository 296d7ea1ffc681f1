"""Statements of the random programs: assignments to slices, scatters, and updates in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.programs.maker import InPlace, Made, Maker, Skip, broadcasts, is_integer
from tests.programs.reads import index
from tests.programs.shapes import bounds, place

POINTWISE = (
    "{x}.add_({y})", "{x}.mul_({y})", "{x}.sub_({y})", "{x} += {y}", "{x} *= {y}", "{x}.copy_({y})",
    "{x}.add_({y}, alpha=0.5)", "{x}.lerp_({y}, 0.25)", "{x}.addcmul_({y}, {y}, value=0.5)",
)  # fmt: skip
OWN = (
    "{x}.mul_({n})", "{x}.add_({n})", "{x}.relu_()", "{x}.neg_()", "{x}.zero_()", "{x}.fill_({n})",
    "{x}.clamp_(-1, 1)", "{x}.tanh_()", "{x}.sigmoid_()", "{x}.abs_()", "{x}.clamp_(min=0)",
    "{x}.square_()",
)  # fmt: skip


def writable(m: Maker, wanted: Callable[[Tensor], bool] = lambda _: True) -> str:
    """A value to change: no leaf of autograd, and no two elements in one place."""
    return m.pick(lambda t: wanted(t) and not (t.is_leaf and t.requires_grad) and not overlaps(t))


def overlaps(value: Tensor) -> bool:
    """True if elements share memory, as along an expanded axis."""
    if not value.numel() or value.is_contiguous():
        return False
    offset = torch.zeros((), dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        shape = [1] * value.dim()
        shape[dim] = size
        offset = offset + (torch.arange(size) * stride).view(shape)
    return offset.unique().numel() < value.numel()


def source_for(m: Maker, shape: tuple[int, ...]) -> str:
    """A number, or a value that broadcasts to a shape, as text."""
    if m.chance(0.4):
        return m.choice(("1", "0", "2", "0.5", "-1", "True"))
    fitting = [
        n for n, t in m.values.items() if len(t.shape) <= len(shape) and broadcasts(shape, t.shape)
        and all(a == b or b == 1 for a, b in zip(reversed(shape), reversed(t.shape), strict=False))
    ]  # fmt: skip
    y = m.choice(fitting)
    return m.choice((y, y, f"{y} + 1", f"-{y}", f"{y} * 2"))


def assign_slice(m: Maker) -> Made:
    """x[1:, ::2] = y."""
    x = writable(m)
    if not m.values[x].dim():
        return InPlace(f"{x}[...] = {m.number()}")
    where = place(m, x)
    try:
        target = eval(f"x[{where}]", {"x": m.values[x]})
    except (IndexError, TypeError) as error:
        raise Skip from error
    operator = m.choice(("=", "=", "=", "+=", "*="))
    return InPlace(f"{x}[{where}] {operator} {source_for(m, tuple(target.shape))}")


def assign_columns(m: Maker) -> Made:
    """One axis sliced, the others whole."""
    x = writable(m, lambda t: t.dim() > 0)
    rank = m.values[x].dim()
    dim = m.random.randrange(rank)
    size = m.values[x].shape[dim]
    where = ", ".join([":"] * dim + [bounds(m, size)])
    target = eval(f"x[{where}]", {"x": m.values[x]})
    return InPlace(f"{x}[{where}] = {source_for(m, tuple(target.shape))}")


def fresh_buffer(m: Maker) -> Made:
    """A buffer to write to."""
    x = m.pick()
    kind = m.choice(("zeros_like", "ones_like", "empty_like"))
    return f"torch.{kind}({x})" if kind != "empty_like" else f"{x}.clone()"


def in_place(m: Maker) -> Made:
    """A pointwise update of a whole value."""
    x = writable(m, lambda t: t.is_floating_point())
    if m.chance(0.5):
        return InPlace(m.choice(OWN).format(x=x, n=m.number()))
    shape = m.values[x].shape
    y = m.beside(x, lambda t: t.is_floating_point() and t.dim() <= len(shape))
    return InPlace(m.choice(POINTWISE).format(x=x, y=y))


def in_place_masked(m: Maker) -> Made:
    """Updates under a mask."""
    x = writable(m)
    mask = m.mask_for(x)
    value = m.choice(("0", "1", "2", "-1"))
    texts = [f"{x}.masked_fill_({mask}, {value})", f"{x}[{mask}] = {value}"]
    return InPlace(m.choice(texts))


def in_place_view(m: Maker) -> Made:
    """An update through a view that has no name."""
    x = writable(m, lambda t: t.dim() > 0)
    value = m.values[x]
    dim = m.dim(x)
    size = m.extent(x, dim)
    at = m.random.randrange(size)
    views = [
        f"{x}.select({dim}, {at})",
        f"{x}.narrow({dim}, {at}, {size - at})",
        f"{x}.unsqueeze(0)",
        f"{x}[{at % value.shape[0] if value.shape[0] else 0}]",
    ]
    if value.dim() > 1:
        views += [f"{x}.transpose({dim}, 0)", f"{x}.diagonal()", f"{x}.flatten(0, 1)"]
    update = m.choice(
        (".mul_(2)", ".add_(1)", ".zero_()", ".fill_(3)", ".neg_()", ".copy_({y})", ".add_({y})")
    )
    target = m.choice(views)
    if "{y}" in update:
        shape = tuple(eval(target, {x: value}).shape)
        update = update.format(y=source_for(m, shape))
    return InPlace(f"{target}{update}")


def wide_index(m: Maker, x: str, dim: int, count: str) -> str:
    """An index without repetitions as long as `x` on the other axes, expanded over them."""
    rank = m.values[x].dim()
    size = m.size(x, dim)
    shape = ["1"] * rank
    shape[dim % rank] = "-1"
    sizes = [m.size(x, d) for d in range(rank)]
    sizes[dim % rank] = "-1"
    order = m.choice((f"torch.arange({count})", f"({size} - 1 - torch.arange({count}))"))
    wide = f"{order}.reshape({', '.join(shape)}).expand({', '.join(sizes)})"
    return m.choice((wide, f"{wide}.clone()"))


def scatter(m: Maker) -> Made:
    """scatter and scatter_add with indices that don't repeat, so that the order doesn't matter."""
    x = m.ranked()
    dim = m.dim(x)
    size = m.extent(x, dim)
    number = m.random.randint(1, size)
    count = m.size(x, dim) if number == size else str(number)
    at = wide_index(m, x, dim, count)
    shape = list(m.values[x].shape)
    shape[dim] = number
    value = m.values[x]
    others = [
        n for n, t in m.values.items()
        if t.dtype == value.dtype and t.dim() == value.dim()
        and all(a >= b for a, b in zip(t.shape, shape, strict=True))
    ]  # fmt: skip
    y = m.choice(others)
    call = m.choice(("scatter", "scatter_add", "scatter_reduce", "scatter", "index"))
    if call == "scatter" and m.chance(0.4):
        return f"{x}.scatter({dim}, {at}, {m.integer_number()})"
    if call == "scatter_reduce":
        how = m.choice(("sum", "amax", "mean"))
        return f"{x}.scatter_reduce({dim}, {at}, {y}, '{how}')"
    if call == "index":
        flat = f"torch.arange({count})"
        part = f"{y}.narrow({dim}, 0, {count})"
        return m.choice(
            (
                f"{x}.index_add({dim}, {flat}, {part})",
                f"{x}.index_copy({dim}, {flat}, {part})",
                f"{x}.index_fill({dim}, {flat}, 2)",
            )
        )
    return f"{x}.{call}({dim}, {at}, {y})"


def index_put(m: Maker) -> Made:
    """Brackets with tensors on the left, positions that don't repeat or a value that doesn't."""
    x = writable(m, lambda t: t.dim() > 0)
    size = m.extent(x, 0)
    number = m.random.randint(1, size)
    i = m.choice(
        (
            f"torch.arange({number})",
            f"torch.arange({number}) - {number}",
            f"({m.size(x, 0)} - 1 - torch.arange({number}))",
        )
    )
    shape = (number, *m.values[x].shape[1:])
    kind = m.random.randrange(5)
    if kind == 0:
        return InPlace(f"{x}[{index(m, m.size(x, 0), str(number))}] = {m.integer_number()}")
    if kind == 1 and m.values[x].dim() > 1:
        second = m.extent(x, 1)
        j = index(m, m.size(x, 1), str(number))
        del second
        source = source_for(m, (number, *shape[2:]))
        way = m.choice(("{x}[{i}, {j}] = {v}", "{x}[{i}, {j}] += {v}", "{x}[{i}, {j}] *= {v}"))
        return InPlace(way.format(x=x, i=i, j=j, v=source))
    if kind == 2 and m.values[x].dim() > 1 and number <= m.values[x].shape[-1]:
        return InPlace(
            f"{x}[..., torch.arange({number})] = {source_for(m, (*m.values[x].shape[:-1], number))}"
        )
    if kind == 3:
        return (
            InPlace(f"{x}.index_fill_(0, {i}, {m.integer_number()})")
            if "- " not in i
            else InPlace(f"{x}[{i}] += 1")
        )
    return InPlace(f"{x}[{i}] = {source_for(m, shape)}")


def functional_writes(m: Maker) -> Made:
    """slice_scatter, select_scatter and index_put as functions."""
    x = m.ranked()
    dim = m.dim(x)
    size = m.extent(x, dim)
    start = m.random.randrange(size)
    length = m.random.randint(1, size - start)
    y = m.choice(
        (
            x,
            f"{x}.flip({dim})",
            f"({x} * 2)",
            f"{x}.neg()" if m.values[x].is_floating_point() else x,
        )
    )
    return m.choice((
        f"{x}.slice_scatter({y}.narrow({dim}, 0, {length}), {dim}, {start}, {start + length})",
        f"{x}.select_scatter({y}.select({dim}, 0), {dim}, {start})",
        f"{x}.diagonal_scatter({x}.diagonal() * 0)",
        f"{x}.masked_scatter({m.mask_for(x)}, {y})",
    ))  # fmt: skip


def integer_in_place(m: Maker) -> Made:
    """Counters."""
    x = writable(m, is_integer)
    return InPlace(
        m.choice((f"{x}.add_(1)", f"{x} += 2", f"{x}.mul_(2)", f"{x}.zero_()", f"{x}.clamp_(0, 3)"))
    )


TEMPLATES = {
    assign_slice: 6, assign_columns: 4, fresh_buffer: 2, in_place: 4, in_place_masked: 2,
    in_place_view: 3, scatter: 4, index_put: 3, functional_writes: 2, integer_in_place: 1,
}  # fmt: skip
