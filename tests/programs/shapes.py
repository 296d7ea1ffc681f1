"""Statements of the random programs: views, joins, and ops that move values unchanged."""

from __future__ import annotations

from tests.programs.maker import Made, Maker, Several, Skip


def view(m: Maker) -> Made:
    """A reshape that merges, splits or flattens axes."""
    x = m.ranked()
    shape = list(m.values[x].shape)
    rank = len(shape)
    call = m.choice(("reshape", "reshape", "view"))
    kind = m.random.randrange(5)
    if kind == 0:
        return f"{x}.{call}(-1)"
    if kind == 1 and rank > 1:
        place = m.random.randrange(rank - 1)
        sizes = [m.size(x, d) for d in range(rank)]
        sizes[place : place + 2] = [
            "-1" if m.chance(0.5) else f"{sizes[place]} * {sizes[place + 1]}"
        ]
        return f"{x}.{call}({', '.join(sizes)})"
    if kind == 2:
        start = m.random.randrange(rank)
        return f"{x}.flatten({start}, {m.random.randrange(start, rank)})"
    place = m.random.randrange(rank)
    factor = m.choice([n for n in (1, 2, 3, 4, 5, 7, 8) if shape[place] % n == 0])
    if kind == 3:
        pair = m.choice((f"({factor}, -1)", f"(-1, {factor})"))
        return f"{x}.unflatten({place}, {pair})"
    sizes = [m.size(x, d) for d in range(rank)]
    sizes[place : place + 1] = m.choice(([str(factor), "-1"], ["-1", str(factor)]))
    return f"{x}.{call}({', '.join(sizes)})"


def permute(m: Maker) -> Made:
    """Axes in another order."""
    x = m.ranked(2)
    rank = m.values[x].dim()
    order = m.random.sample(range(rank), rank)
    a, b = m.dim(x), m.dim(x)
    texts = [
        f"{x}.permute({', '.join(map(str, order))})", f"{x}.transpose({a}, {b})",
        f"{x}.movedim({a}, {b})", f"{x}.mT",
    ]  # fmt: skip
    return m.choice([*texts, f"{x}.t()"] if rank == 2 else texts)


def axes_of_one(m: Maker) -> Made:
    """An axis of length 1 comes, goes or is expanded."""
    x = m.pick()
    shape = m.values[x].shape
    if 1 in shape and m.chance(0.4):
        return m.choice((f"{x}.squeeze()", f"{x}.squeeze({list(shape).index(1)})"))
    if len(shape) > 4:
        raise Skip
    place = m.random.randint(0, len(shape))
    new = f"{x}.unsqueeze({place})"
    if m.chance(0.3):
        new = f"{x}[{', '.join([':'] * place + ['None'])}]"
    if m.chance(0.5):
        sizes = ["-1"] * len(shape)
        sizes.insert(place, m.choice(("2", "3", "5")))
        new += f".expand({', '.join(sizes)})"
    return new


def expand(m: Maker) -> Made:
    """Axes of length 1 repeated, to another's shape or by numbers."""
    x = m.pick()
    shape = m.values[x].shape
    if m.chance(0.5):
        y = m.beside(x)
        return m.choice((f"{x}.expand_as({y})", f"torch.broadcast_to({x}, {y}.shape)"))
    sizes = [m.choice(("2", "4", "-1")) if size == 1 else "-1" for size in shape]
    if m.chance(0.3):
        sizes.insert(0, m.choice(("2", "3")))
    return f"{x}.expand({', '.join(sizes)})" if sizes else f"{x}.expand(3)"


def repeat(m: Maker) -> Made:
    """Values written more than once."""
    x = m.pick()
    rank = m.values[x].dim()
    if m.chance(0.5) and rank:
        dim = m.dim(x)
        return f"{x}.repeat_interleave(2, {dim})"
    times = [m.choice(("1", "1", "2", "3")) for _ in range(rank)]
    if m.chance(0.3):
        times.insert(0, "2")
    return f"{x}.repeat({', '.join(times)})" if times else f"{x}.repeat(2)"


def bounds(m: Maker, size: int) -> str:
    """The text of a slice, bounds from either end, with a step sometimes."""
    start = m.choice(("", "", "0", "1", "2", "-2", "-3", str(size // 2)))
    stop = m.choice(("", "", "-1", "-2", "3", "5", "100", str(size // 2 + 1)))
    step = m.choice(("", "", "", ":2", ":3"))
    return f"{start}:{stop}{step}"


def place(m: Maker, x: str) -> str:
    """The text of an index made of slices, numbers and None."""
    parts = []
    for size in m.values[x].shape:
        kind = m.random.random()
        if kind < 0.45:
            parts.append(bounds(m, size))
        elif kind < 0.6 and size:
            parts.append(str(m.choice((0, -1, min(1, size - 1)))))
        else:
            parts.append(":")
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    if m.chance(0.1):
        parts.insert(0, "None")
    if m.chance(0.15):
        parts = ["...", parts[-1]]
    return ", ".join(parts)


def slice_(m: Maker) -> Made:
    """Basic indexing."""
    x = m.ranked()
    return f"{x}[{place(m, x)}]"


def piece(m: Maker) -> Made:
    """A part of one axis by a function."""
    x = m.ranked()
    dim = m.dim(x)
    size = m.extent(x, dim)
    start = m.random.randrange(size)
    length = m.random.randint(1, size - start)
    window = m.random.randint(1, min(size, 4))
    return m.choice((
        f"{x}.narrow({dim}, {start}, {length})", f"{x}.select({dim}, {start - size})",
        f"{x}.select({dim}, {start})", f"{x}.unfold({dim}, {window}, {m.choice((1, 2, window))})",
        f"{x}.diagonal()", f"{x}.diagonal(1, -2, -1)", f"{x}.unbind({dim})[{start}]",
    ))  # fmt: skip


def pieces(m: Maker) -> Made:
    """All parts of one axis."""
    x = m.ranked()
    dim = m.dim(x)
    size = m.extent(x, dim)
    count = m.choice((1, 2, 2, 3))
    kind = m.random.randrange(4)
    if kind == 0:
        each = -(-size // count)
        return Several(-(-size // each), f"{x}.chunk({count}, {dim})")
    if kind == 1:
        return Several(count, f"{x}.tensor_split({count}, {dim})")
    if kind == 2:
        first = m.random.randint(0, size)
        return Several(2, f"{x}.split([{first}, {m.size(x, dim)} - {first}], {dim})")
    if size > 4:
        raise Skip
    return Several(size, f"{x}.unbind({dim})")


def reorder(m: Maker) -> Made:
    """The same shape with the elements elsewhere."""
    x = m.ranked()
    dim, other = m.dim(x), m.dim(x)
    shift = m.choice((1, -1, 2, 3))
    return m.choice((
        f"{x}.flip({dim})", f"{x}.flip(({dim}, {other}))", f"{x}.roll({shift}, {dim})",
        f"{x}.roll(({shift}, 1), ({dim}, {other}))", f"{x}.rot90()", f"{x}.roll({shift})",
    ))  # fmt: skip


def triangle(m: Maker) -> Made:
    """One side of the diagonal."""
    x = m.ranked(2)
    return f"{x}.{m.choice(('tril', 'triu'))}({m.choice(('', '1', '-1', '2'))})"


def pad(m: Maker) -> Made:
    """Room around a value."""
    x = m.ranked()
    rank = m.values[x].dim()
    widths = [m.choice((0, 0, 1, 2, 3, -1)) for _ in range(2 * m.random.randint(1, rank))]
    mode = m.choice(
        (
            "",
            "",
            "",
            ", value=1.5",
            ", value=-1",
            ", mode='circular'",
            ", mode='reflect'",
            ", mode='replicate'",
        )
    )
    if "mode" in mode:
        widths = [abs(w) for w in widths[:4]]
    return f"torch.nn.functional.pad({x}, {tuple(widths)}{mode})"


def join(m: Maker) -> Made:
    """Values concatenated, or stacked along a new axis."""
    x = m.ranked()
    shape, dim = m.values[x].shape, m.dim(x)
    at = dim % len(shape)

    def fits(other: object) -> bool:
        theirs = list(getattr(other, "shape", ()))
        return len(theirs) == len(shape) and all(
            a == b or d == at for d, (a, b) in enumerate(zip(shape, theirs, strict=True))
        )

    others = [m.pick(fits) for _ in range(m.random.randint(1, 3))]
    parts = [x, *others] if m.chance(0.5) else [*others, x]
    if m.chance(0.2):
        parts[0] = f"{parts[0]}[:0]" if at == 0 else f"-{parts[0]}"
    return f"torch.cat([{', '.join(parts)}], {dim})"


def stack(m: Maker) -> Made:
    """Values along a new axis."""
    x = m.pick()
    shape = m.values[x].shape
    others = [m.pick(lambda t: t.shape == shape) for _ in range(m.random.randint(1, 2))]
    call = m.choice(("stack", "stack", "hstack", "vstack"))
    parts = ", ".join([x, *others])
    if call != "stack":
        return f"torch.{call}([{parts}])"
    return f"torch.stack([{parts}], {m.random.randint(-1, len(shape))})"


def parts_together(m: Maker) -> Made:
    """Parts side by side that are computed from one value, such as the gradient of a gated unit."""
    x = m.pick(lambda t: t.is_floating_point() and t.dim() > 0)
    forms = ("s * {x}", "{x} - s", "s + 1", "-s", "s * s", "(1 - s) * {x} * s", "{x}")
    parts = [m.choice(forms).format(x=x) for _ in range(m.random.randint(2, 4))]
    function = m.choice(("sigmoid({x})", "tanh({x} * {x})", "rsqrt({x} * {x} + 1)"))
    made = f"torch.{function}".format(x=x)
    call, dim = m.choice(("cat", "cat", "stack")), m.dim(x)
    joined = f"torch.{call}([{', '.join(parts)}], {dim})"
    return f"(lambda s: {joined})({made})"


TEMPLATES = {
    view: 6, permute: 5, axes_of_one: 4, expand: 3, repeat: 1, slice_: 6, piece: 3, pieces: 3,
    reorder: 3, triangle: 2, pad: 3, join: 4, stack: 2, parts_together: 3,
}  # fmt: skip
