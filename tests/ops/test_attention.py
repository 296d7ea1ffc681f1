"""Attention, and products of groups and with scales, between kernels and next to eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.plans import library_operations
from tests.ops.library_definitions import (
    FLOATS,
    LAYOUTS,
    check,
    defined,
    numbers,
)
from tests.support.random_tensors import laid_out

pytestmark = pytest.mark.usefixtures("poison")


# -- attention


def attention(fd: Any, q: Any, k: Any, v: Any) -> Any:
    return fd.ops.sdpfa_fwd(q, k, v, is_causal=False)[0]


def heads(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("length", "keys"), [(6, 6), (1, 5), (5, 1), (4, 7), (0, 3), (3, 0)])
def test_attention(
    dtype: torch.dtype, causal: bool, scale: float | None, length: int, keys: int
) -> None:
    """Also its backward, from the results of the forward."""

    def define(fd: Any, q: Any, k: Any, v: Any, g: Any) -> Any:
        made = fd.ops.sdpfa_fwd(q, k, v, None, None, 0.0, causal, scale)
        output, sums, seed, offset = made
        return (
            *made,
            *fd.ops.sdpfa_bwd(g, q, k, v, output, sums, 0.0, causal, seed, offset, scale),
        )

    q, k, v, g = heads(
        (2, 3, length, 8), (2, 3, keys, 8), (2, 3, keys, 8), (2, 3, length, 8), dtype=dtype
    )
    fd = defined(define, [q, k, v, g])
    output, sums, seed, offset, *gradients = fd.execute([q, k, v, g])
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    factor = 8**-0.5 if scale is None else scale
    scores = wide[0] @ wide[1].mT * factor
    if causal:
        scores = scores.masked_fill(~torch.ones(length, keys).tril().bool(), -torch.inf)
    want = scores.softmax(-1) @ wide[2]
    close = {"rtol": 0.05, "atol": 0.05} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    assert output.dtype is dtype and (seed.shape, offset.shape) == ((2,), ())
    torch.testing.assert_close(output.double(), want, check_stride=False, **close)
    if keys:
        torch.testing.assert_close(sums.double(), scores.logsumexp(-1), **close)
    want.backward(g.double())
    for got, operand in zip(gradients, wide, strict=True):
        assert operand.grad is not None and got.dtype is dtype
        torch.testing.assert_close(got.double(), operand.grad, check_stride=False, **close)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_takes_every_layout_and_gives_torchs(layout: str) -> None:
    q, k, v = (laid_out(x, layout) for x in heads((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)))
    eager = torch.nn.functional.scaled_dot_product_attention
    check(attention, eager, q, k, v, exact=False)
    if layout != "transposed":  # torch's other attention, with other strides
        got = defined(attention, [q, k, v]).execute([q, k, v])[0]
        assert got.stride() == eager(q, k, v).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["bias", "mask", "both"])
def test_attention_with_a_bias_or_a_mask(
    dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the library's own precision; test_half_library_ops.py has that of other processors."""
    monkeypatch.setattr(library_operations, "is_faster_in_float32", lambda dtype: False)

    def define(fd: Any, q: Any, k: Any, bias: Any, mask: Any) -> Any:
        given = {"bias": None if kind == "mask" else bias, "mask": None if kind == "bias" else mask}
        return fd.ops.sdpfa_fwd(q, k, k, **given)[0]

    def eager(q: Any, k: Any, bias: Any, mask: Any) -> torch.Tensor:
        added = torch.zeros_like(bias) if kind == "mask" else bias
        added = added if kind == "bias" else added.masked_fill(~mask, -torch.inf)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, added.to(q.dtype))

    q, k = heads((2, 3, 4, 8), (2, 3, 5, 8), dtype=dtype)
    bias, mask = torch.randn(2, 1, 4, 5), torch.rand(4, 5) > 0.3
    mask[:, 0] = True
    check(define, eager, q, k, bias, mask, exact=False)


def test_an_attention_block_is_kernels_and_one_call_for_each_product() -> None:
    """Projections, heads by views, attention, and the residual addition in one kernel."""

    def define(fd: Any, x: Any, w: Any, u: Any) -> Any:
        ops = fd.ops
        queries = ops.linear(x, w)
        b, t, _ = ops.shape(x)
        split = ops.permute(ops.reshape(queries, [b, t, 4, 8]), [0, 2, 1, 3])
        output, *_ = ops.sdpfa_fwd(split, split, split, is_causal=True)
        joined = ops.reshape(ops.permute(output, [0, 2, 1, 3]), [b, t, 32])
        return ops.add(ops.linear(joined, u), x)

    def eager(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        split = torch.nn.functional.linear(x, w).unflatten(-1, (4, 8)).transpose(1, 2)
        attend = torch.nn.functional.scaled_dot_product_attention
        output = attend(split, split, split, is_causal=True)
        return torch.nn.functional.linear(output.transpose(1, 2).flatten(-2), u) + x

    inputs = heads((2, 6, 32), (32, 32), (32, 32))
    source = check(define, eager, *inputs, exact=False)
    assert (source.count("into_mm("), source.count("library_sdpfa_fwd(")) == (2, 1)
    assert source.count("launch") == 1 and "copy_" not in source


def test_slices_of_a_projection_are_passed_by_their_strides() -> None:
    """Queries, keys and values from one product: no kernel runs between the two calls."""

    def define(fd: Any, x: Any, w: Any) -> Any:
        joint = fd.ops.linear(x, w)
        b, t, _ = fd.ops.shape(x)
        parts = []
        for first in (0, 32, 64):
            part = fd.ops.slice(joint, [0, 0, first], [b, t, first + 32])
            split = fd.ops.reshape(part, [b, t, 4, 8])
            parts.append(fd.ops.permute(split, [0, 2, 1, 3]))
        return fd.ops.sdpfa_fwd(*parts, is_causal=True)[0]

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = torch.nn.functional.linear(x, w).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)

    source = check(define, eager, *heads((2, 6, 32), (96, 32)), exact=False)
    assert "launch" not in source and "run(" not in source
    assert source.count("into_mm(") == source.count("library_sdpfa_fwd(") == 1


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_sliced_operand_of_a_product(step: int) -> None:
    def define(fd: Any, a: Any, b: Any) -> Any:
        part = fd.ops.slice(a, [1, 0], [9, 4], [step, 2])
        return fd.ops.matmul(part, fd.ops.slice(fd.ops.permute(b, [1, 0]), [0, 0], [2, 3]))

    source = check(
        define,
        lambda a, b: a[1:9:step, 0:4:2] @ b.t()[0:2, 0:3],
        numbers((8, 4)),
        numbers((4, 2), seed=1),
    )
    assert "launch" not in source and "run(" not in source


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_in_attention(is_causal: bool, dtype: torch.dtype) -> None:
    """Rows of the identity as values show the probabilities, and so which of them are kept."""
    p, length = 0.25, 24
    q, k = (torch.randn(2, 2, length, length, dtype=dtype) for _ in range(2))
    identity = torch.eye(length, dtype=dtype).expand(2, 2, length, length).contiguous()

    def forward(fd: Any, q: Any, k: Any, v: Any) -> Any:
        return fd.ops.sdpfa_fwd(q, k, v, dropout_p=p, is_causal=is_causal)

    def backward(fd: Any, *given: Any) -> Any:
        made, q, k, v, output, sums, *state = given
        return fd.ops.sdpfa_bwd(made, q, k, v, output, sums, p, is_causal, *state)

    fd = defined(forward, [q, k, identity])
    torch.manual_seed(3)
    output, sums, seed, offset = fd.execute([q, k, identity])
    wide = [t.double().requires_grad_() for t in (q, k, identity)]
    scores = wide[0] @ wide[1].mT / length**0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    kept = output != 0
    drawn = scores > -torch.inf
    share = (kept & drawn).sum() / drawn.sum()
    assert abs(share - (1 - p)) < 0.05
    want = scores.softmax(-1) * kept / (1 - p) @ wide[2]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.02}
    torch.testing.assert_close(output.double(), want, **close)
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1), **close)

    given = torch.randn_like(output)
    inputs = [given, q, k, identity, output, sums, seed, offset]
    found = defined(backward, inputs).execute(inputs)
    wanted = torch.autograd.grad(want, wide, given.double())
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), expected, **close)
    torch.manual_seed(3)
    assert torch.equal(fd.execute([q, k, identity])[0], output)
    assert not torch.equal(fd.execute([q, k, identity])[0], output)


# -- products of groups, and scaled ones


def grouped(fd: Any, a: Any, b: Any, ends: Any) -> Any:
    return fd.ops.grouped_mm(a, b, ends)


GROUPED = [((9, 4), (3, 4, 5)), ((3, 9, 4), (4, 9)), ((9, 9), (9, 5)), ((9, 0), (3, 0, 5))]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize(("left", "right"), GROUPED)
@pytest.mark.parametrize("ends", [[2, 2, 9], [0, 4, 9]])
def test_grouped_mm(dtype: torch.dtype, left: Any, right: Any, ends: list[int]) -> None:
    def eager(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        starts = [0, *ends[:-1]]
        spans = [slice(s, e) for s, e in zip(starts, ends, strict=True)]
        match a.dim(), b.dim():
            case 2, 2:
                return torch.stack([a[:, span] @ b[span] for span in spans])
            case 3, 2:
                return torch.cat([x @ b[:, span] for x, span in zip(a, spans, strict=True)], 1)
            case _:
                return torch.cat([a[span] @ y for y, span in zip(b, spans, strict=True)])

    a, b = numbers(left, dtype), numbers(right, dtype, 1)
    check(grouped, eager, a, b, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_mm_takes_every_layout_between_kernels(layout: str) -> None:
    def define(fd: Any, a: Any, b: Any, ends: Any) -> Any:
        return fd.ops.relu(fd.ops.grouped_mm(fd.ops.mul(a, 2.0), b, ends))

    def eager(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return (2 * torch.cat([a[:4] @ b[0], a[4:] @ b[1]])).relu()

    a, b = laid_out(numbers((7, 4)), layout), laid_out(numbers((2, 4, 5), seed=1), layout)
    source = check(define, eager, a, b, torch.tensor([4, 7]))
    assert source.count("launch") == 2 and source.count("library_grouped_mm(") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_scaled_mm(dtype: torch.dtype) -> None:
    def define(fd: Any, a: Any, b: Any, rows: Any, columns: Any, bias: Any) -> Any:
        plain = fd.ops.scaled_mm(a, b, rows, columns)
        more = fd.ops.scaled_mm(a, b, rows, columns, 2.0, bias, 0.5, DataType.Float)
        assert plain[1:] == more[1:] == (None, None)
        return plain[0], more[0]

    def eager(a: Any, b: Any, rows: Any, columns: Any, bias: Any) -> Any:
        product = (a.float() @ b.float()) * rows * columns
        return product.bfloat16(), 2 * product + 0.5 * bias

    a, b = numbers((6, 4), dtype), numbers((4, 5), dtype, 1)
    for rows, columns in (((6, 1), (1, 5)), ((), (1,))):
        scales = torch.rand(rows) + 0.5, torch.rand(columns) + 0.5
        source = check(define, eager, a, b, *scales, numbers((5,)), exact=False)
        assert "run(" not in source


def test_grouped_mm_with_scales() -> None:
    def define(fd: Any, a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> Any:
        made = fd.ops.grouped_mm(a, b, ends, rows, columns, 2.0, dtype=DataType.Float)
        assert made[1:] == (None, None)
        return made[0]

    def eager(a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> torch.Tensor:
        a, b = a.float() * rows, b.float() * columns
        return 2 * torch.cat([a[:4] @ b[0], a[4:] @ b[1]])

    a, b = numbers((7, 4), torch.bfloat16), numbers((2, 4, 5), torch.bfloat16, 1)
    scales = torch.rand(7, 1) + 0.5, torch.rand(2, 1, 5) + 0.5
    source = check(define, eager, a, b, torch.tensor([4, 7]), *scales, exact=False)
    assert source.count("launch") == 3 and source.count("library_grouped_mm(") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_mm_with_scales_of_each_group(dtype: torch.dtype) -> None:
    """Groups of columns times rows: the scales belong to the products."""

    def define(fd: Any, a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> Any:
        return fd.ops.grouped_mm(a, b, ends, rows, columns, dtype=DataType.Float)[0]

    def eager(a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> torch.Tensor:
        a, b = a.float(), b.float()
        parts = [a[:, start:end] @ b[start:end] for start, end in ((0, 2), (2, 2), (2, 7))]
        return torch.stack(parts) * rows * columns

    scales = torch.rand(3, 6, 1) + 0.5, torch.rand(3, 1, 5) + 0.5
    ends = torch.tensor([2, 2, 7])
    check(
        define, eager, numbers((6, 7), dtype), numbers((7, 5), dtype, 1), ends, *scales, exact=False
    )


def test_what_needs_other_hardware_says_so() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64])
        blocks = fd.define_tensor([32, 4])
        for message, call in {
            "scaled_mm: expected a scale of the tensor": lambda: fd.ops.scaled_mm(
                x, fd.ops.permute(x, [1, 0]), blocks, blocks
            ),
            "scaled_mm: expected a result without scales": lambda: fd.ops.scaled_mm(
                x, x, x, x, output_block_scale_size=16
            ),
            "nv_block_quantize: not supported on this device; it needs 4-bit floats": lambda: (
                fd.ops.nv_block_quantize(x)
            ),
            "nv_grouped_block_quantize: not supported on this device": lambda: (
                fd.ops.nv_grouped_block_quantize(x, x, x)
            ),
            "cutlass_nvfp4_grouped_mm: not supported on this device": lambda: (
                fd.ops.cutlass_nvfp4_grouped_mm(x, x, x, x, x, x, x, x)
            ),
            "preprocess_grouped_matmul_input_sf: not supported on this device": lambda: (
                fd.ops.preprocess_grouped_matmul_input_sf(x, x, x)
            ),
        }.items():
            with pytest.raises(UnsupportedError, match=message):
                call()


def test_wrong_attention_and_groups_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, 8])
        half = fd.define_tensor([-1, -1, -1, 8], dtype=DataType.Half)
        matrix = fd.define_tensor([-1, 8])
        ends = fd.define_tensor([3], dtype=DataType.Int)
        ops = fd.ops
        for message, call in {
            "sdpfa_fwd: expected tensors of rank 4": lambda: ops.sdpfa_fwd(matrix, x, x),
            "sdpfa_fwd: expected tensors of one floating dtype": lambda: ops.sdpfa_fwd(x, half, x),
            "sdpfa_fwd: expected a mask of Bool": lambda: ops.sdpfa_fwd(x, x, x, mask=x),
            "sdpfa_fwd: expected a number as scale": lambda: ops.sdpfa_fwd(x, x, x, scale=x),
            "sdpfa_bwd: expected rank 4 of": lambda: ops.sdpfa_bwd(
                half, x, x, x, x, x, 0.0, False, ends, ends
            ),
            "grouped_mm: expected offsets of rank 1": lambda: ops.grouped_mm(matrix, matrix, x),
            "grouped_mm: expected matrices": lambda: ops.grouped_mm(x, matrix, ends),
            "scatter: expected an index of Int": lambda: ops.scatter(x, x, x, 0),
            "scatter: expected a src of": lambda: ops.scatter(
                matrix, ops.cast(matrix, DataType.Int), ops.cast(matrix, DataType.Half), 0
            ),
            "scatter: expected an index of rank 1": lambda: ops.scatter(
                fd.define_tensor([8]), ops.cast(matrix, DataType.Int), 0.0, 0
            ),
            "scatter: expected an index of at most 3": lambda: ops.scatter(
                fd.define_tensor([8, 3]), fd.define_tensor([2, 4], dtype=DataType.Int), 0.0, 0
            ),
        }.items():
            with pytest.raises(DefinitionError, match=message):
                call()
