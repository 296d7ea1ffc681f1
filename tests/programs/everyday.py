"""Small functions that PyTorch users write, as data: lines of Python on inputs with fixed names.

The last part of a row is its result, unless the row ends with `;` because it only changes an input.
`INPUTS` defines the names, for two sets of sizes.  A row runs on its inputs unchanged, and
on intermediate results of them with changing sizes and gradients.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from tests.programs.program import Input, Program, Statement

FLOAT = "torch.randn({shape}, generator=seed(NUMBER))"
MASK = "torch.randint(0, 2, {shape}, generator=seed(NUMBER)).bool()"
SMALL = "torch.randint(0, 5, {shape}, generator=seed(NUMBER))"
POSITION = "torch.tensor({shape})"
# name: how it is made, its dtype, its shape in the first and in the second set of sizes
INPUTS: dict[str, tuple[str, str, Any, Any]] = {
    "x": (FLOAT, "float32", (6, 8), (9, 12)),
    "y": (FLOAT, "float32", (6, 8), (9, 12)),
    "z": (FLOAT, "float32", (4, 6, 8), (5, 9, 12)),
    "w": (FLOAT, "float32", (8, 8), (12, 12)),
    "b": (FLOAT, "float32", (8,), (12,)),
    "c": (FLOAT, "float32", (6, 1), (9, 1)),
    "g": (FLOAT, "float32", (6,), (9,)),
    "s": (FLOAT, "float32", (), ()),
    "q": (FLOAT, "float32", (2, 3, 6, 8), (3, 3, 9, 12)),
    "p": (FLOAT, "float32", (2, 10, 8), (3, 14, 12)),
    "h": (FLOAT + ".to(torch.bfloat16)", "bfloat16", (6, 8), (9, 12)),
    "d": (FLOAT + ".to(torch.float64)", "float64", (6, 8), (9, 12)),
    "m": (MASK, "bool", (6, 8), (9, 12)),
    "r": (MASK, "bool", (6,), (9,)),
    "i": (SMALL, "int64", (6,), (9,)),
    "j": (SMALL, "int64", (6, 8), (9, 12)),
    "n": (SMALL + ".to(torch.int32)", "int32", (6, 8), (9, 12)),
    "u": (SMALL + ".to(torch.uint8)", "uint8", (6, 8), (9, 12)),
    "k": (POSITION, "int64", 2, 3),
    "at": ("{shape}", "int", 2, 3),
}

# Autograd refuses these, so they run without gradients.
WRITES_TO_ONE_OF_SEVERAL_VIEWS = re.compile(r"= x\.(tensor_split|chunk|split)\(.*_\(")

SLICES = (
    "x[1:] = 1;", "x[:-1] = 0.5;", "x[:, 1:] = 1;", "x[::2] = 3;", "x[1::2] = 0;",
    "x[:, ::3] = -1;", "x[0] = 2;", "x[-1] = y[0];", "x[:, 0] = 1;", "x[:, -1] = y[:, 0];",
    "x[2, 3] = 7;", "x[2:4, 3:5] = 0;", "x[1:5, 1:7] = 3;", "x[1:] = y[:-1];",
    "x[1:] = x[:-1].clone();", "x[:, ::2] = y[:, 1::2];", "x[:3] = b;", "x[:, 2:5] = c;",
    "x[...] = 1;", "x[:] = y;", "x[2:] = s;", "x[..., -2:] = 0;", "x[None, 1:3] = 5;",
    "x[1:1] = 3;", "x[4:2] = 3;", "x[-3:-1] = 4;", "x[:100] = 2;", "m[1:] = True;",
    "m[:, ::2] = False;", "n[1:] = 9;", "u[2:4] = 7;", "j[:, 3:] = -1;", "h[1:] = 1;",
    "h[:, ::2] = h[:, 1::2];", "d[::2] = 0.1;", "x[1:] += 1;", "x[:, ::2] *= 2;", "x[0] -= x[1];",
    "x[:3] += x[:3].sum(0, keepdim=True);", "x[:3] = x[:3].sum(0, keepdim=True);", "z[1] = x;",
    "z[:, 2] = b;", "z[1:, 2:4, ::2] = 0;", "z[..., 0] = 1;", "z[0, 1:] = y[1:];",
    "z[:, :, 1:3] = x[:, 1:3];", "x[1:].copy_(y[1:]);", "x[:, 2].fill_(3);", "x[2:4].zero_();",
    "x[1:].mul_(2);", "x.t()[1:] = 0;", "x.select(1, 3).copy_(g);", "x.narrow(0, 1, 2).add_(1);",
    "x.diagonal().fill_(1);", "x.view(-1)[3:9] = 0;", "x.t().copy_(y.t() + 1);",
    "z.transpose(0, 1)[2] = 1;", "a, e = x.tensor_split(2, 0); a.copy_(b); e.mul_(2);",
    "a, e = x.chunk(2, 1); a.add_(e);", "a, e = x.split([2, x.shape[0] - 2]); e.copy_(b);",
    "a = torch.zeros(8, 10); a[1:7, 1:9] = 3; a", "a = torch.zeros_like(x); a[1:] = x[:-1]; a",
    "a = torch.zeros_like(x); a[1:, 2:] = 1; a * 2",
    "a = x.clone(); a[1:4] = (b + 1)[None].expand(3, -1); a",
    "a = torch.zeros_like(x); a[:3] = x[:3]; a[3:] = y[3:]; a",
    "a = x.new_zeros(z.shape); a[:] = x; a", "a = torch.full((6, 8), 0.5); a[:, 1:3] = 2; a",
    "a = torch.ones(x.shape[0] + 2, x.shape[1]); a[1:-1] = x; a",
    "a = torch.zeros(3, *x.shape); a[0] = x; a[1] = y; a[2] = x + y; a",
    "a = x * 2; a[a > 1] = 1; a", "a = x.clone(); a[0], a[1] = x[1], x[0]; a",
    "x[1:3], x[3:5] = y[1:3], y[3:5];",
)  # fmt: skip
INDICES = (
    "x[i] = 1;", "x[i, 2] = 3;", "x[torch.arange(3)] = y[:3];",
    "x[torch.arange(3), torch.arange(3)] = 5;", "x[:, torch.tensor([0, 2])] = 1;",
    "x[torch.tensor([0, -1])] = 2;", "x[torch.tensor([1, 3])] += 1;", "x[m] = 0;", "x[r] = 1;",
    "x[x > 0] = 0.5;", "x[x < 0] *= 1;", "x.masked_fill_(m, 2);",
    "x.index_fill_(0, torch.tensor([1, 3]), -1);", "x.index_add_(0, torch.arange(6), y[:6]);",
    "x.index_copy_(0, torch.tensor([2, 0]), y[:2]);", "x.scatter_(1, torch.zeros_like(j), 1.0);",
    "x.scatter_(1, j[:, :1], 5.0);", "x.scatter_add_(1, j[:, :1], y[:, :1]);",
    "x.put_(torch.tensor([3, 5]), torch.tensor([1.0, 2.0]));", "x[i]", "x[i, i]", "x[:, i]",
    "x[i[:, None], i]", "x[i][:, i]", "x[-i - 1]", "x[(i + 1) % 5]", "x[i.flip(0)]", "x[..., i]",
    "z[:, i]", "z[0, i, 1:]", "z[i % 3, i]", "x[None, i]",
    "x[torch.arange(4)[:, None], torch.arange(3)]", "x[i[:, None].expand(-1, 3), torch.arange(3)]",
    "x[torch.tensor([[0, 1], [2, -1]])]", "x[k]", "x[k, 1:]", "x[:, k]", "torch.gather(x, 1, j)",
    "torch.gather(x, 0, j[:3])", "torch.gather(x, 1, (i % 8)[:, None].expand(-1, 3)) * 2",
    "torch.gather(x, 0, (torch.arange(4)[:, None] % 4).expand(4, 4))",
    "torch.take_along_dim(x.exp(), (i % 5)[:, None], 1)",
    "torch.take_along_dim(x, x.argsort(1), 1)", "x.gather(1, x.argmax(1, keepdim=True))",
    "x.index_select(0, i)", "x.index_select(1, i) + 1", "torch.nn.functional.embedding(i, x)",
    "torch.nn.functional.embedding(j, w).sum(1)", "torch.nn.functional.one_hot(i, 5)",
    "torch.nn.functional.one_hot(j, 6).to(torch.float32) @ x[:6]", "x.take(j)",
    "x.scatter(1, j[:, :1], 0.0)", "x.scatter_add(1, j[:, :1].expand(-1, 2), y[:, :2])",
    "x.scatter(0, torch.arange(x.shape[0])[:, None].expand(-1, x.shape[1]).flip(0), y)",
    "x.index_add(1, torch.arange(3), y[:, :3])", "x.masked_fill(m, 0)", "torch.where(m, x, y)",
    "torch.where(m, x, 0.0)", "torch.where(r[:, None], x, b)", "x * m", "x[:, None] == y[None]",
    "(x > 0).sum(1)", "m.any(1), m.all(0)",
)  # fmt: skip
MASKS = (
    "x.tril()", "x.triu(1)", "torch.ones(6, 6, dtype=torch.bool).tril() & r[:6]",
    "w.masked_fill(torch.ones_like(w).tril() == 0, -1000.0).softmax(-1)",
    "w.masked_fill(~torch.ones_like(w, dtype=torch.bool).tril(), float('-inf')).softmax(-1)",
    "torch.arange(x.shape[1]) < i[:, None]", "x * (torch.arange(x.shape[1]) < i[:, None])",
    "(torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[1])).abs() * x",
    "torch.nn.functional.pad(x, (1, 2))", "torch.nn.functional.pad(x, (1, 0, 0, 2), value=3.0)",
    "torch.nn.functional.pad(x, (-1, 1))",
    "torch.nn.functional.pad(q, (1, 1, 2, 2), mode='reflect')",
    "torch.nn.functional.pad(q, (1, 2, 0, 1), mode='replicate')",
    "torch.nn.functional.pad(q, (1, 1, 1, 1), mode='circular')",
    "torch.nn.functional.pad(x, (0, 0, 1, 0))[:-1]", "x.roll(1)", "x.roll(1, 0) - x",
    "x.roll((1, 2), (0, 1))", "x.roll(-1, 1) * 2", "x.flip(0) + x", "x.flip((0, 1))", "x.rot90()",
    "torch.stack([x, y])", "torch.stack([x, y], -1).flatten(-2)",
    "torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)", "torch.cat([x, y])",
    "torch.cat([x, y], -1) * 2", "torch.cat([-x[:, 4:], x[:, :4]], -1)",
    "torch.cat([x[1:], x[:1]])", "torch.cat([x.t(), b[:, None]], 1)",
    "torch.cat([x, x.sum(0, keepdim=True)])", "torch.hstack([x, c])", "torch.vstack([x, b])",
    "torch.cat([x, torch.zeros_like(y[:2])])", "x.repeat(2, 1)", "x.repeat_interleave(2, 0)",
    "x[:, None].expand(-1, 3, -1).reshape(-1, x.shape[1])", "b.expand(3, -1).clone()",
    "torch.diag(b)", "torch.outer(b, g)", "torch.meshgrid(g, b, indexing='ij')[0] * 2",
    "x.unfold(1, 3, 1).mean(-1)",
)  # fmt: skip
BUFFERS = (
    "p[:, at] = p[:, 0] + 1;", "p[:, at:at + 1] = b;", "p[:, k] = 2;",
    "p.index_copy_(1, k[None], p[:, :1] * 2);", "p[:, k[None]] = p[:, :1];",
    "p[:, :at + 2] = 0; p.sum()", "p.select(1, at).copy_(b);", "p.narrow(1, at, 2).fill_(1);",
    "p[torch.arange(p.shape[0]), k] = b;",
    "p.scatter_(1, k.expand(p.shape[0], 1, p.shape[2]), 1.0);", "p.index_fill_(1, k[None], 0);",
    "p[:, :at] @ w", "a = p.roll(-1, 1); a[:, -1] = b; p.copy_(a);",
    "p.copy_(torch.cat([p[:, 1:], p[:, :1]], 1));",
    "torch.where(torch.arange(p.shape[1])[:, None] == k, b, p)",
    "torch.where(torch.arange(p.shape[1])[:, None] <= at, p, 0.0)",
    "b.mul_(0.9).add_(x.mean(0), alpha=0.1);", "b.lerp_(x.mean(0), 0.1);",
    "b.copy_(0.9 * b + 0.1 * x.var(0)); (x - x.mean(0)) / (b.abs() + 0.1)", "k.add_(1);",
    "k += 1; x[k]", "s.add_(x.sum());", "s.copy_(x.max());", "i.add_(1); x[i]",
    "x.add_(y); x.mul_(2); x + y", "x.sub_(y, alpha=0.1);", "x.addcmul_(y, y, value=0.1);",
    "x.addcdiv_(y, y.abs() + 1, value=-0.1);", "x.clamp_(-1, 1); y.copy_(x);",
    "a = x.clone(); x.copy_(y); y.copy_(a);", "x.mul_(2).add_(x.sum(1, keepdim=True));",
    "x.t().add_(1); x", "x.zero_().add_(y);", "m.logical_not_(); x * m", "m &= x > 0;",
    "n += 1; n * 2", "u.add_(250);", "x *= c; x += b;",
)  # fmt: skip
NORMS = (
    "torch.nn.functional.layer_norm(x, x.shape[1:], b, b)",
    "torch.nn.functional.rms_norm(x, x.shape[1:], b)", "torch.nn.functional.group_norm(q, 3)",
    "torch.nn.functional.batch_norm(q, None, None, training=True)",
    "torch.nn.functional.instance_norm(q)", "torch.nn.functional.normalize(x, dim=-1)",
    "x / x.norm(dim=1, keepdim=True)", "x / x.norm()",
    "(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 0.1).sqrt()", "x.std(0)",
    "torch.linalg.vector_norm(z, dim=(1, 2))", "x.softmax(0)", "x.t().softmax(-1)",
    "x.log_softmax(-1)", "x.transpose(0, 1).log_softmax(0)", "x.logsumexp(1)", "z.softmax(1)",
    "(x * x).mean(-1, keepdim=True)", "x.cumsum(1)", "x.cumsum(0).flip(0)", "x.max(1)[0]",
    "x.argmax(-1)", "x.amax((0, 1))", "x.topk(2)[0]", "x.sort(1)[0]",
    "torch.nn.functional.mse_loss(x, y)", "torch.nn.functional.l1_loss(x, y)",
    "torch.nn.functional.smooth_l1_loss(x, y)", "torch.nn.functional.cross_entropy(x, i)",
    "torch.nn.functional.cross_entropy(x, i, label_smoothing=0.1)",
    "torch.nn.functional.cross_entropy(x, x.softmax(1))",
    "torch.nn.functional.nll_loss(x.log_softmax(1), i)",
    "torch.nn.functional.binary_cross_entropy_with_logits(x, m.to(torch.float32))",
    "torch.nn.functional.kl_div(x.log_softmax(1), y.softmax(1), reduction='batchmean')",
    "torch.nn.functional.huber_loss(x, y, delta=0.5)",
    "torch.nn.functional.cosine_similarity(x, y)", "torch.nn.functional.logsigmoid(x.t())",
    "(x @ w + b).relu() @ w", "torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))",
    "(x @ x.t() / 8 ** 0.5).softmax(-1) @ y",
    "torch.nn.functional.scaled_dot_product_attention(z, z, z)",
    "torch.nn.functional.conv1d(z, z[:2, :, :3])", "torch.nn.functional.max_pool2d(q, 2)",
    "torch.nn.functional.avg_pool2d(q.relu(), 2) + 1",
    "q.to(memory_format=torch.channels_last).relu() + 1",
    "a = q.to(memory_format=torch.channels_last)[:, :, 1:]; a.roll(1, 2) * 2",
    "torch.nn.functional.batch_norm(q.to(memory_format=torch.channels_last)[:, 1:], None, None, "
    "training=True)",
    "torch.where(m, torch.nan, x).nansum(1)", "torch.nanmean(torch.where(m, torch.nan, x), 0)",
    "torch.where(m, torch.nan, x).nansum()",
    "q.permute(0, 2, 3, 1).reshape(q.shape[0], -1, 3) @ torch.ones(3, 4)",
    "torch.nn.functional.interpolate(q, scale_factor=2)", "torch.einsum('ij,kj->ik', x, y)",
    "torch.nn.functional.glu(x)", "a, e = x.chunk(2, -1); torch.nn.functional.silu(a) * e",
)  # fmt: skip

VIEWS = (
    "x.t()", "x[1:]", "x[:, ::2]", "x[..., 1:-1]", "x.reshape(-1)", "x.unsqueeze(1)",
    "z.permute(2, 0, 1)", "z[1]", "z.transpose(1, 2)", "x.flip(0)", "c.expand(-1, 5).relu()",
    "x.narrow(1, 2, 3)", "x.diagonal()", "z.flatten(1)", "x.unfold(1, 3, 2)", "z.select(1, 2)",
    "x.chunk(2, 1)[1]", "z.unflatten(0, (1, -1))", "q.movedim(1, -1)", "c.squeeze(1)",
    "x[None, :, 0]", "x.tensor_split(2)[1]",
)  # fmt: skip
USES = (
    "v * 2 + v.sin()", "v.sum(-1)", "v.softmax(-1) + 1", "v.cumsum(0) - v",
    "a = v.clone(); a[1:] = 0.5; a", "torch.cat([v, v]).relu()", "v - v.mean(0, keepdim=True)",
    "v.mul_(2);",
)  # fmt: skip


def rows() -> dict[str, str]:
    """Every row, by a name that is its text."""
    made = [row for table in (SLICES, INDICES, MASKS, BUFFERS, NORMS) for row in table]
    for number, view in enumerate(VIEWS):
        # Two uses of each view, shifted from view to view, so that each use meets several of them.
        chosen = [USES[(number + step) % len(USES)] for step in (0, 3)]
        made += [f"v = {view}; {use}" for use in chosen]
    return dict(zip(made, made, strict=True))


def program(row: str, intermediate: bool) -> Program:
    """A row as a program: on its inputs, or on intermediates, with changing sizes and gradients."""
    tree = ast.parse(row.replace(";", "\n").replace("\n ", "\n"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = [name for name in INPUTS if name in used] or ["x"]
    grad = intermediate and not WRITES_TO_ONE_OF_SEVERAL_VIEWS.search(row)
    statements = []
    if intermediate:
        copied = [name for name in names if name != "at"]
        statements = [Statement((name,), _copy(name)) for name in copied]
    body = [_statement(node) for node in tree.body]
    outputs = [name for name in names if name != "at"]
    if not row.endswith(";"):
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        count = len(last.value.elts) if isinstance(last.value, ast.Tuple) else 1
        results = tuple(f"out{n}" for n in range(count))
        body[-1] = Statement(results, ast.unparse(last.value))
        outputs = [*results, *outputs]
    inputs = tuple(_input(name, number, intermediate, grad) for number, name in enumerate(names))
    return Program(0, inputs, (*statements, *body), tuple(outputs))


def _statement(node: ast.stmt) -> Statement:
    """A line that names values, or one that changes them in place."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(part.id for part in parts if isinstance(part, ast.Name))
        if len(names) == len(parts):
            return Statement(names, ast.unparse(node.value))
    return Statement((), ast.unparse(node))


def _copy(name: str) -> str:
    """An intermediate result in place of an input."""
    return f"{name} * 1.5" if "float" in INPUTS[name][1] else f"{name}.clone()"


def _input(name: str, number: int, changing: bool, grad: bool) -> Input:
    base, dtype, *shapes = INPUTS[name]
    sets = tuple(shapes) if changing else (shapes[0],)
    base = base.replace("NUMBER", str(number))
    return Input(name, dtype, sets, sets, base, "", grad and "float" in dtype)
