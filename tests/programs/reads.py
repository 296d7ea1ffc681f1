"""Statements of the random programs: reads at indices, given, computed, expanded or negative."""

from __future__ import annotations

from collections.abc import Sequence

from tests.programs.maker import Made, Maker, Skip, is_integer


def index(m: Maker, size: str, *shape: str) -> str:
    """The text of an int64 index for an axis of a length, of a shape given as texts.

    It is computed from a range, or from an integer value of the program that is one-dimensional.
    """
    count = shape[0]
    kind = m.random.randrange(5)
    texts = (
        f"torch.arange({count}) % {size}",
        f"(torch.arange({count}) * 3 + 1) % {size}",
        f"{size} - 1 - torch.arange({count}) % {size}",
        f"torch.arange({count}) % {size} - {size}",
        f"torch.zeros({count}, dtype=torch.int64)",
    )
    return f"({texts[kind]})"


def of_value(m: Maker, size: str) -> str:
    """An index computed from an integer value."""
    i = m.pick(is_integer)
    return m.choice(
        (
            f"({i} % {size}).long()",
            f"({i} % {size} - {size}).long()",
            f"({i}.abs() % {size}).to(torch.int64)",
        )
    )


def select(m: Maker) -> Made:
    """index_select, take, embedding: one axis at the places of a vector."""
    x = m.ranked()
    dim = m.dim(x)
    m.extent(x, dim)
    size = m.size(x, dim)
    count = m.choice(("1", "2", "3", "5", size))
    at = index(m, size, count)
    if "-" in at.replace(" - 1 - ", ""):
        at = f"({at} % {size})"
    rank = m.values[x].dim()
    texts = [f"{x}.index_select({dim}, {at})"]
    if rank == 2:
        rows = m.size(x, 0)
        if m.values[x].shape[0]:
            texts.append(f"torch.nn.functional.embedding({index(m, rows, count)} % {rows}, {x})")
    texts.append(f"{x}.reshape(-1).take({at})")
    return m.choice(texts)


def advanced(m: Maker) -> Made:
    """Brackets with tensors in them."""
    x = m.ranked()
    rank = m.values[x].dim()
    m.extent(x, 0)
    m.extent(x, -1)
    rows, columns = m.size(x, 0), m.size(x, -1)
    count = m.choice(("1", "2", "3", rows))
    i, j = index(m, rows, count), index(m, columns, count)
    texts = [
        f"{x}[{i}]",
        f"{x}[..., {j}]",
        f"{x}[{i}[:, None]]",
        f"{x}[{i}[:, None].expand(-1, 3)]",
    ]
    if rank > 1:
        texts += [
            f"{x}[{i}, {index(m, m.size(x, 1), count)}]" if m.values[x].shape[1] else f"{x}[{i}]",
            f"{x}[:, {index(m, m.size(x, 1), count)}]" if m.values[x].shape[1] else f"{x}[{i}]",
            f"{x}[{i}, ..., {j}]", f"{x}[{i}[:, None], ..., {index(m, columns, '2')}]",
            f"{x}[0, ..., {j}]", f"{x}[{i}, 1:]",
        ]  # fmt: skip
    return m.choice(texts)


def advanced_by_value(m: Maker) -> Made:
    """Brackets with an index computed from a value of the program."""
    x = m.ranked()
    dim = m.choice((0, m.values[x].dim() - 1))
    m.extent(x, dim)
    at = of_value(m, m.size(x, dim))
    return f"{x}[{at}]" if dim == 0 else f"{x}[..., {at}]"


def gather(m: Maker) -> Made:
    """gather and take_along_dim, with an index that is expanded, computed or sorted."""
    x = m.ranked()
    dim = m.dim(x)
    m.extent(x, dim)
    rank, size = m.values[x].dim(), m.size(x, dim)
    at = dim % rank
    count = m.choice(("1", "2", "4", size))
    ones = ["1"] * rank
    ones[at] = "-1"
    vector = index(m, size, count)
    vector = f"({vector} % {size})"
    line = f"{vector}.reshape({', '.join(ones)})"
    sizes = [m.size(x, d) for d in range(rank)]
    sizes[at] = "-1"
    wide = f"{line}.expand({', '.join(sizes)})"
    texts = [
        f"torch.gather({x}, {dim}, {wide})", f"torch.gather({x}, {dim}, {wide}.clone())",
        f"torch.take_along_dim({x}, {line}, {dim})", f"torch.take_along_dim({x}, {wide}, {dim})",
        f"{x}.gather({dim}, {x}.argsort(dim={dim}, stable=True))",
        f"{x}.gather({dim}, {x}.argmax({dim}, keepdim=True))",
    ]  # fmt: skip
    shape = m.values[x].shape
    suited = [n for n, t in m.values.items() if is_integer(t) and indexes(t.shape, shape, at)]
    if suited:
        texts += [f"{x}.gather({dim}, ({m.choice(suited)} % {size}).long())"] * 3
    return m.choice(texts)


def indexes(shape: Sequence[int], source: Sequence[int], dim: int) -> bool:
    """True if an index of a shape can gather along an axis."""
    return len(shape) == len(source) and all(
        a <= b or d == dim for d, (a, b) in enumerate(zip(shape, source, strict=True))
    )


def masked(m: Maker) -> Made:
    """The elements that an index of computed positions selects under a mask."""
    x = m.floating(1)
    size = m.size(x, -1)
    m.extent(x, -1)
    return m.choice((
        f"torch.where(torch.arange({size}) % 2 == 0, {x}, {x}.flip(-1))",
        f"{x} * (torch.arange({size}) < {size} // 2)",
        f"{x} + torch.arange({size})", f"{x} * torch.linspace(0, 1, {size})",
        f"{x}[..., torch.arange({size}) // 2]", f"{x}[..., :: 2].repeat_interleave(2, -1)",
    ))  # fmt: skip


def one_hot(m: Maker) -> Made:
    """Classes as rows, bucketize and searchsorted."""
    i = m.integer()
    if m.values[i].numel() > 500:
        raise Skip
    return m.choice((
        f"torch.nn.functional.one_hot(({i} % 4).long(), 4)",
        f"torch.nn.functional.one_hot(({i} % 4).long(), 5).sum(-2)",
        f"(torch.nn.functional.one_hot(({i} % 4).long(), 5) * ({i} + 1)[..., None]).sum(-1)",
        f"torch.where({i}[..., None] == torch.arange(4), 1 / {i}[..., None], 0.0).sum(-1)",
        f"(({i}[..., None] == torch.arange(3)).float() / {i}[..., None]).sum(-1)",
        f"({i}[..., None] == torch.arange(4))", f"torch.tensor([0, 2, 4])[({i} % 3).long()]",
    ))  # fmt: skip


TEMPLATES = {select: 3, advanced: 4, advanced_by_value: 3, gather: 4, masked: 2, one_hot: 1}
