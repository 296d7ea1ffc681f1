"""Statements of the random programs: reductions, norms, softmax, scans and matrix products."""

from __future__ import annotations

from tests.programs.maker import Made, Maker, Several, Skip

FLOAT_REDUCTIONS = (
    "{x}.sum({d}{k})", "{x}.mean({d}{k})", "{x}.amax({d}{k})", "{x}.amin({d}{k})",
    "{x}.sum({d}{k})", "{x}.var({d}{k})", "{x}.var({d}, correction=0{k})",
    "{x}.std({d}, correction=0{k})", "{x}.logsumexp({d}{k})",
    "torch.linalg.vector_norm({x}, 2, {d}{k})", "torch.linalg.vector_norm({x}, 1, {d}{k})",
    "({x} * {x}).sum({d}{k})", "torch.linalg.vector_norm({x}, float('inf'), {d}{k})",
    "{x}.norm(2, {d}{k})",
)  # fmt: skip
WHOLE = (
    "{x}.sum()",
    "{x}.mean()",
    "{x}.max()",
    "{x}.min()",
    "{x}.norm()",
    "{x}.var()",
    "{x}.prod()",
)
INTEGER_REDUCTIONS = (
    "{x}.sum({d}{k})", "{x}.amax({d}{k})", "{x}.any({o}{k})", "{x}.all({o}{k})",
    "{x}.count_nonzero({o})", "{x}.argmax({o}{k})", "{x}.cumsum({o})", "{x}.sum()", "{x}.any()",
    "{x}.all()", "{x}.prod({o}{k})", "{x}.sum({d}{k}, dtype=torch.float32)",
)  # fmt: skip
SCANS = (
    "{x}.cumsum({o})", "{x}.cumsum({o})", "{x}.cummax({o})[0]", "{x}.cumprod({o})",
    "{x}.cummin({o})[0]", "{x}.cummax({o})[1]", "{x}.flip({o}).cumsum({o}).flip({o})",
    "{x}.flip({o}).cumprod({o}).flip({o})",
    "{x}.logcumsumexp({o})", "{x}.diff(dim={o})", "{x}.sort({o})[0]", "{x}.argmax({o}{k})",
    "{x}.max({o}{k})[0]", "{x}.min({o}{k})[1]",
)  # fmt: skip
ALONG = (
    "{x}.softmax({o})", "{x}.log_softmax({o})", "torch.nn.functional.normalize({x}, dim={o})",
    "torch.nn.functional.softmin({x}, {o})", "{x} - {x}.amax({o}, keepdim=True)",
    "{x} - {x}.mean({o}, keepdim=True)", "{x} / ({x}.abs().sum({o}, keepdim=True) + 1)",
    "{x} * torch.rsqrt({x}.square().mean({o}, keepdim=True) + 0.1)",
)  # fmt: skip
# Of `t`, whose last axis is long: what is reduced of its parts, then of its rows, and both again.
OF_PARTS = (
    "t.sum(-1)", "t.mean(-1)", "t.amax(-1)", "t.var(-1)", "t.softmax(-1).square().sum(-1)",
    "(t - t.mean(-1, keepdim=True)).abs().sum(-1)",
)  # fmt: skip
OF_ROWS = (
    "p.sum(-1)",
    "p.mean(-1)",
    "p.amax(-1)",
    "p.max(-1)[0]",
    "p.argmax(-1)",
    "p.softmax(-1).square().sum(-1)",
)
OF_BOTH = (
    "t * r[..., None, None]",
    "t.softmax(-1) + r[..., None, None]",
    "t - p[..., None] * r.sum()",
    "p - r.amax()",
    "r.sum()",
    "t * p.softmax(-1)[..., None] + r[..., None, None]",
    "t + r.sum(-1)[..., None, None, None]",
    "(t + r[..., None, None]).sum(-1)",
)


def reduction(m: Maker) -> Made:
    """One or more axes of a float reduced."""
    x = m.floating(1)
    keep = m.choice(("", ", keepdim=True"))
    return m.choice(FLOAT_REDUCTIONS).format(x=x, d=m.dims(x), k=keep)


def whole(m: Maker) -> Made:
    """Everything reduced to a number."""
    return m.choice(WHOLE).format(x=m.floating())


def integer_reduction(m: Maker) -> Made:
    """A reduction of integers or masks."""
    x = m.pick(lambda t: not t.is_floating_point() and t.dim() > 0)
    keep = m.choice(("", ", keepdim=True"))
    return m.choice(INTEGER_REDUCTIONS).format(x=x, d=m.dims(x), o=m.dim(x), k=keep)


def scan(m: Maker) -> Made:
    """Running sums and their like."""
    x = m.floating(1)
    return m.choice(SCANS).format(x=x, o=m.dim(x), k=m.choice(("", ", keepdim=True")))


def along(m: Maker) -> Made:
    """Softmax and normalisations along one axis."""
    x = m.floating(1)
    return m.choice(ALONG).format(x=x, o=m.dim(x))


def moments(m: Maker) -> Made:
    """Variance and mean at once."""
    x = m.floating(1)
    keep = m.choice(("", ", keepdim=True"))
    return Several(2, f"torch.var_mean({x}, {m.dims(x)}, correction=0{keep})")


def masked_softmax(m: Maker) -> Made:
    """Attention's softmax over unmasked elements."""
    x = m.floating(2)
    mask = m.choice((
        f"torch.ones({m.size(x, -2)}, {m.size(x, -1)}, dtype=torch.bool).tril()",
        f"({x} > -0.5)", f"torch.arange({m.size(x, -1)}) < 2",
    ))  # fmt: skip
    fill = m.choice(("-1000.0", "float('-inf')"))
    return f"{x}.masked_fill(~({mask}), {fill}).softmax(-1).nan_to_num()"


def norm(m: Maker) -> Made:
    """Layer, RMS, group and batch norms, with weights where some fit."""
    x = m.floating(1)
    value = m.values[x]
    size = m.size(x, -1)
    m.extent(x, -1)
    weights = [
        n for n, t in m.values.items() if t.shape == value.shape[-1:] and t.dtype == value.dtype
    ]
    weight = f", {m.choice(weights)}" if weights and m.chance(0.5) else ""
    texts = [
        f"torch.nn.functional.layer_norm({x}, ({size},){weight})",
        f"torch.nn.functional.rms_norm({x}, ({size},){weight}, eps=0.1)",
    ]
    if value.dim() >= 3:
        texts.append(f"torch.nn.functional.group_norm({x}, 1)")
        texts.append(f"torch.nn.functional.instance_norm({x}, eps=0.1)")
        texts.append(f"torch.nn.functional.layer_norm({x}, ({m.size(x, -2)}, {size}))")
    if value.dim() >= 2:
        texts.append(f"torch.nn.functional.batch_norm({x}, None, None, training=True, eps=0.1)")
    return m.choice(texts)


def product(m: Maker) -> Made:
    """A matrix product of two values, or of one with itself."""
    x = m.floating(1)
    value = m.values[x]
    if value.numel() > 4000:
        raise Skip
    suited = [
        n for n, t in m.values.items()
        if t.dtype == value.dtype and t.dim() == 2 and t.shape[0] == value.shape[-1]
    ]  # fmt: skip
    if suited and m.chance(0.6):
        return f"{x} @ {m.choice(suited)}"
    transposed = [
        n for n, t in m.values.items()
        if t.dtype == value.dtype and t.dim() == 2 and t.shape[-1] == value.shape[-1]
    ]  # fmt: skip
    if transposed and m.chance(0.6):
        return m.choice(
            (f"{x} @ {(y := m.choice(transposed))}.t()", f"torch.nn.functional.linear({x}, {y})")
        )
    if value.dim() < 2:
        raise Skip
    if value.dim() == 2:
        return m.choice((
            f"{x} @ {x}.t()", f"{x}.t() @ {x}", f"torch.addmm({x}[:, :1], {x}, {x}.t())",
            f"{x}[:1] @ {x}.t()", f"{x} @ {x}[:1].t()", f"{x}.t()[:, -1:] @ {x}[-1:]",
            f"torch.nn.functional.linear({x}[:1], {x}, {x}[:, 0])", f"torch.mv({x}, {x}[0])",
        ))  # fmt: skip
    return m.choice((
        f"{x}[..., :1, :] @ {x}.transpose(-1, -2)", f"{x} @ {x}[..., :1, :].transpose(-1, -2)",
        f"{x} @ {x}.transpose(-1, -2)", f"torch.einsum('...ij,...kj->...ik', {x}, {x})",
        f"({x}.transpose(-1, -2) @ {x}).softmax(-1)", f"{x}[..., :1] @ {x}[..., -1:, :]",
        f"torch.einsum('...ij,...j->...i', {x}, {x}[..., 0, :])",
    ))  # fmt: skip


def attention_layer(m: Maker) -> Made:
    """Multi-head attention of a value with itself or with a part; the batch or the length first."""
    x = m.pick(lambda t: t.is_floating_point() and t.dim() == 3 and t.numel() <= 4000)
    width, size = m.extent(x, 2), m.size(x, 2)
    weights = f"torch.linspace(-1, 1, 4 * {size} ** 2, dtype={x}.dtype).view(-1, {size})"
    heads = m.choice([count for count in (1, 2, 3) if width % count == 0])
    batch_first = m.chance(0.5)
    rows = f"{x}.transpose(0, 1)" if batch_first else x
    keys = m.choice(("r", "r[:1]"))
    mask = "" if m.chance(0.6) else ", key_padding_mask=(k[..., 0] > 3).t()"
    call = (
        f"torch.nn.functional.multi_head_attention_forward(r, k, k, {size}, {heads}, "
        f"w[: 3 * {size}], None, None, None, False, 0.0, w[3 * {size} :], None, "
        f"need_weights={m.chance(0.3) and not mask}{mask})[0]"
    )
    back = ".transpose(0, 1)" if batch_first else ""
    return f"(lambda r, w: (lambda k: {call})({keys}))({rows}, {weights}){back}"


def nested(m: Maker) -> Made:
    """Reductions of parts of rows, of their results, and of these."""
    x = m.floating(2)
    if m.values[x].numel() > 4000:
        raise Skip
    last = f"torch.linspace(0.5, 1.5, {m.choice((33, 40, 64))}, dtype={x}.dtype)"
    both, rows, parts = m.choice(OF_BOTH), m.choice(OF_ROWS), m.choice(OF_PARTS)
    if "r.sum(-1)" in both and m.values[x].dim() < 3:
        raise Skip
    inner = f"(lambda r: {both})({rows})"
    return f"(lambda t: (lambda p: {inner})({parts}))({x}.unsqueeze(-1) * {last})"


def loss(m: Maker) -> Made:
    """A loss of two values."""
    x = m.floating()
    shape, dtype = m.values[x].shape, m.values[x].dtype
    y = m.pick(lambda t: t.shape == shape and t.dtype == dtype)
    kind = m.choice(("", ", reduction='none'", ", reduction='sum'"))
    texts = [
        f"torch.nn.functional.{f}({x}, {y}{kind})"
        for f in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    ]
    texts.append(f"torch.nn.functional.binary_cross_entropy_with_logits({x}, {y}.sigmoid(){kind})")
    if len(shape) == 2 and shape[1]:
        classes = f"torch.arange({m.size(x, 0)}) % {m.size(x, 1)}"
        texts.append(f"torch.nn.functional.cross_entropy({x}, {classes}{kind})")
        texts.append(f"torch.nn.functional.cosine_similarity({x}, {y}, dim={m.dim(x)})")
    return m.choice(texts)


TEMPLATES = {
    reduction: 7, whole: 2, integer_reduction: 2, scan: 3, along: 4, moments: 1, masked_softmax: 2,
    norm: 3, product: 3, nested: 2, loss: 2, attention_layer: 1,
}  # fmt: skip
