"""Verifiers: for each noun, a function that raises InternalError if an invariant doesn't hold.

    verify_fusion      definitions before uses, ranks and flags per kind of expression, domains
    verify_scheduled   loops made out of the logical axes, compute positions inside the loops
    verify_segmented   every output computed, segments in an order in which they can run
    verify_kernel      buffers allocated and indices bound where they are used

Passes take valid nouns to valid nouns; the pass runner calls these functions in between.  A message
names the value and what was expected of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dtypes import DataType
from ..errors import InternalError, expected
from .domains import IterDomain, ParallelType, TensorDomain, history
from .equal_sizes import EqualSizes
from .exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    GatherOp,
    IndexedWrite,
    LibraryOp,
    PermuteOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ReshapeOp,
    ScanOp,
    ScatterOp,
    SqueezeOp,
    WelfordOp,
    WindowOp,
    WriteOp,
)
from .fusion import Fusion
from .kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    If,
    Kernel,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from .kernel_queries import accesses, operand_sizes
from .scalars import ONE, IntExpr, Symbol
from .schedule import ScheduledFusion
from .segmented import SegmentedFusion
from .vals import Scalar, TensorView, Val


def _check(condition: bool, noun: str, what: str, got: object, *named: object) -> None:
    """Raises unless a condition holds; the text, with the values that it names, is made then."""
    if not condition:
        raise InternalError(expected(f"verify {noun}", what.format(*named), got))


# -- Fusion


def verify_fusion(fusion: Fusion) -> None:
    """Raises InternalError if a fusion is malformed."""
    defined: set[Val] = set()
    for value in fusion.inputs:
        _check(value not in defined, "fusion", "each input once", value)
        _check(value.expr is None, "fusion", "no definition of the input {}", value.expr, value)
        defined.add(value)
        if isinstance(value, TensorView):
            _verify_domain(value)
    for expr in fusion.exprs:
        for value in expr.inputs:
            is_known = value in defined or (isinstance(value, Scalar) and value.expr is None)
            _check(is_known, "fusion", "{} defined before it is read", expr, value)
            _check(expr in value.uses_list, "fusion", "{} to know its reader", expr, value)
        for value in expr.outputs:
            _check(value not in defined, "fusion", "{} defined once", expr, value)
            _check(value.expr is expr, "fusion", "{} to know its definition", expr, value)
            defined.add(value)
            if isinstance(value, TensorView):
                _verify_domain(value)
        _verify_expr(expr)
    _verify_sizes(fusion)
    _verify_outputs(fusion, defined)


def _verify_sizes(fusion: Fusion) -> None:
    """The operands of a pointwise operation have the same size along each axis, or 1.

    Sizes that the definition forces to be equal (`equal_extents`) count as the same.
    """
    equal = EqualSizes(fusion.equal_extents)
    for expr in fusion.exprs:
        if not isinstance(expr, PointwiseOp) or not expr.tensor_outputs:
            continue
        axes = [expr.tensor_outputs[0].domain.root_or_logical]
        axes += [tensor.axes for tensor in expr.tensor_inputs]
        for column in zip(*axes, strict=True):
            sizes = {axis.size for axis in column} - {ONE}
            if len(sizes) > 1:
                is_one = len({equal.find(size) for size in sizes}) == 1
                _check(is_one, "fusion", "axes of one size", f"{column} in {expr}")


def _verify_outputs(fusion: Fusion, defined: set[Val]) -> None:
    for value in fusion.outputs:
        _check(isinstance(value, TensorView), "fusion", "tensors as outputs", value)
        _check(value in defined, "fusion", "every output defined", value)
    for value, target in fusion.aliases.items():
        _check(value in fusion.outputs, "fusion", "{}, which aliases, as output", "none", value)
        _check(target in fusion.inputs, "fusion", "{} to alias an input", target, value)
    for value in fusion.overwritten:
        _check(
            value in fusion.inputs, "fusion", "{}, which is overwritten, as input", "none", value
        )
    for value in fusion.hidden_outputs:
        _check(value in fusion.aliases, "fusion", "hidden {} to alias an input", "no alias", value)


def _reaches(axes: Sequence[IterDomain], roots: Sequence[IterDomain]) -> bool:
    """True if `axes` are made of all of `roots` (and broadcast stand-ins), each used once."""
    used: list[IterDomain] = list(axes)
    made: set[IterDomain] = set()
    for expr in history(axes, roots):
        used += expr.inputs
        made.update(expr.outputs)
    if len(set(used)) != len(used) or not made <= set(used):
        return False
    strangers = set(used) - made - set(roots)
    return set(roots) <= set(used) and all(axis.is_broadcast for axis in strangers)


def _verify_domain(tensor: TensorView) -> None:
    domain: TensorDomain = tensor.domain
    name = f"T{tensor.name}"
    if domain.root is not None:
        is_made = _reaches(domain.logical, domain.root)
        _check(is_made, "fusion", "the logical axes of {} made of its root axes", tensor, name)
    _check(
        _reaches(domain.loop, domain.logical), "fusion", "loops of {} made of axes", tensor, name
    )
    allocated = domain.allocated
    if domain.allocation is not None:
        is_made = _reaches(allocated, tensor.axes)
        _check(is_made, "fusion", "the allocation of {} made of its axes", allocated, name)
    what = "contiguity of {} for {} axes"
    is_long = len(domain.contiguity) == len(allocated)
    _check(is_long, "fusion", what, domain.contiguity, name, len(allocated))
    what = "contiguity None exactly on broadcast axes of {}"
    for axis, flag in zip(allocated, domain.contiguity, strict=True):
        # An input that is specialised for its layout may have an axis of stride 0.
        is_right = axis.is_broadcast == (flag is None) or (flag is None and tensor.expr is None)
        _check(is_right, "fusion", what, domain.contiguity, name)
    for axis in domain.logical:
        if axis.is_broadcast:
            _check(axis.extent is ONE, "fusion", "broadcast axes of {} of extent 1", axis, name)


def _verify_expr(expr: Expr) -> None:
    if isinstance(expr.output, Scalar):
        is_host = isinstance(expr, PointwiseOp) and not expr.tensor_inputs
        _check(is_host, "fusion", "scalars computed from scalars", expr)
        return
    roots = [output.domain.root_or_logical for output in expr.tensor_outputs]
    match expr:
        case PointwiseOp():
            _verify_pointwise(expr, roots[0])
        case ReductionOp() | WelfordOp():
            for root in roots:
                _verify_reduction(expr, root)
        case ScanOp(dim=dim):
            _verify_ranks(expr, roots[0])
            _check(0 <= dim < len(roots[0]), "fusion", "an axis that is scanned", expr)
        case BroadcastOp(flags=flags):
            _check(len(flags) == len(roots[0]), "fusion", "a flag for each output axis", expr)
            kept = [axis for axis, flag in zip(roots[0], flags, strict=True) if not flag]
            new = [axis for axis, flag in zip(roots[0], flags, strict=True) if flag]
            _verify_ranks(expr, kept)
            _check(all(a.is_broadcast for a in new), "fusion", "new axes that broadcast", expr)
        case SqueezeOp(flags=flags):
            axes = expr.tensor_inputs[0].axes
            _check(len(flags) == len(axes), "fusion", "a flag for each input axis", expr)
            gone = [axis for axis, flag in zip(axes, flags, strict=True) if flag]
            is_ranked = len(axes) - len(gone) == len(roots[0])
            _check(is_ranked, "fusion", "the axes that are not squeezed", expr)
            _check(all(a.is_broadcast for a in gone), "fusion", "broadcast axes squeezed", expr)
        case PermuteOp(dims=dims):
            is_permutation = sorted(dims) == list(range(len(roots[0])))
            _check(is_permutation, "fusion", "a permutation of the axes", expr)
            _verify_ranks(expr, roots[0])
        case ExpandOp() | ReshapeOp():
            _verify_ranks(expr, roots[0])
        case RandomOp(inputs=inputs):
            is_integer = [value.dtype is DataType.Int for value in inputs]
            _check(is_integer == [True, True], "fusion", "a seed and an offset of Int", expr)
            _verify_ranks(expr, roots[0])
        case WindowOp():
            _verify_window(expr, roots[0])
        case GatherOp():
            _verify_gather(expr, roots[0])
        case ScatterOp():
            _verify_write(expr, expr.value.axes)
            _check(len(roots[0]) == len(expr.base_axes), "fusion", "the base's rank", expr)
        case WriteOp():
            _verify_write(expr, roots[0])
        case LibraryOp():
            _verify_library(expr)


def _verify_window(expr: WindowOp, root: Sequence[IterDomain]) -> None:
    _verify_ranks(expr, root)
    _check(len(expr.windows) == len(root), "fusion", "a window for each axis", expr)
    _check(len(expr.inputs) in (1, 2), "fusion", "a source, and a fill or none", expr)
    if len(expr.inputs) == 1:
        for axis, window in zip(root, expr.windows, strict=True):
            is_slice = window is None or window.covers(axis.size)
            _check(is_slice, "fusion", "a fill for windows that don't cover their axes", expr)


def _verify_gather(expr: GatherOp, root: Sequence[IterDomain]) -> None:
    source, index = expr.tensor_inputs
    _check(len(expr.source_axes) == source.ndim, "fusion", "an entry a source axis", expr)
    _check(len(expr.index_axes) == index.ndim, "fusion", "an entry an index axis", expr)
    _check(expr.source_axes.count(None) == 1, "fusion", "one axis that is indexed", expr)
    used = {*expr.index_axes, *(axis for axis in expr.source_axes if axis is not None)}
    _check(used == set(range(len(root))), "fusion", "each output axis in an operand", expr)


def _verify_write(expr: IndexedWrite, root: Sequence[IterDomain]) -> None:
    base = expr.tensor_inputs[0]
    _check(len(expr.base_axes) == base.ndim, "fusion", "an entry a base axis", expr)
    _check(len(expr.index_axes) == expr.index.ndim, "fusion", "an entry an index axis", expr)
    _check(expr.base_axes.count(None) == 1, "fusion", "one axis that is indexed", expr)
    _check(expr.value.dtype is base.dtype, "fusion", "values of the base's dtype", expr)
    used = {*expr.index_axes, *(axis for axis in expr.base_axes if axis is not None)}
    _check(used == set(range(len(root))), "fusion", "each value axis in an operand", expr)
    is_plain = not any(axis.is_broadcast and axis.size is not ONE for axis in expr.value.axes)
    _check(is_plain, "fusion", "values that aren't expanded", expr)


def _verify_library(expr: LibraryOp) -> None:
    names = [*expr.names, *(name for name, _ in expr.options)]
    _check(len(expr.names) == len(expr.inputs), "fusion", "a name for each input", expr)
    _check(len(set(names)) == len(names), "fusion", "each argument once", expr)
    for output in expr.tensor_outputs:
        is_plain = not any(a.is_reduction or a.expanded_extent for a in output.domain.logical)
        _check(is_plain, "fusion", "axes that are neither reduced nor expanded", output)


def _verify_ranks(expr: Expr, axes: Sequence[IterDomain]) -> None:
    for tensor in expr.tensor_inputs:
        _check(len(tensor.axes) == len(axes), "fusion", "inputs of rank {}", expr, len(axes))


def _verify_pointwise(expr: PointwiseOp, root: Sequence[IterDomain]) -> None:
    _verify_ranks(expr, root)
    tensors = expr.tensor_inputs[1:] if expr.op == "where" else expr.tensor_inputs
    if expr.op == "where" and not isinstance(expr.inputs[0], TensorView):
        tensors = expr.tensor_inputs
    _check(len({t.dtype for t in tensors}) <= 1, "fusion", "tensors of one dtype", expr)
    for position, axis in enumerate(root):
        real = [t for t in expr.tensor_inputs if not t.axes[position].is_broadcast]
        if axis.is_broadcast:
            _check(not real, "fusion", "axis {} broadcast only where all are", expr, axis)
        _check(not axis.is_reduction, "fusion", "no reduction axis {}", expr, axis)


def _verify_reduction(expr: Expr, root: Sequence[IterDomain]) -> None:
    _verify_ranks(expr, root)
    _check(any(axis.is_reduction for axis in root), "fusion", "an axis that is reduced", expr)


# -- ScheduledFusion


def verify_scheduled(scheduled: ScheduledFusion) -> None:
    """Raises InternalError if a schedule is malformed; lowering reports what is illegal."""
    verify_fusion(scheduled.fusion)
    for tensor in scheduled.fusion.tensors:
        schedule = scheduled[tensor]
        name = f"T{tensor.name}"
        _check(schedule.tensor is tensor, "schedule", "the schedule of {}", schedule.tensor, name)
        is_made = _reaches(schedule.loop, tensor.domain.logical)
        _check(is_made, "schedule", "the loops of {} made of its logical axes", schedule, name)
        rank = len(schedule.loop)
        is_inside = 0 <= schedule.compute_at <= rank
        _check(is_inside, "schedule", "a compute position of {} in [0, {}]", schedule, name, rank)


# -- SegmentedFusion


def verify_segmented(segmented: SegmentedFusion) -> None:
    """Raises InternalError if the segments don't compute the fusion in the given order."""
    whole = segmented.fusion
    known: set[Val] = set(whole.inputs)
    for segment in segmented.segments:
        for value in segment.inputs:
            is_known = value in known or isinstance(value, Scalar)
            _check(is_known, "segments", "{} computed before it is read", segment, value)
        local: set[Val] = set(segment.inputs) | {v for v in whole.inputs if isinstance(v, Scalar)}
        for expr in segment.exprs:
            for value in expr.inputs:
                is_there = value in local or (isinstance(value, Scalar) and value.expr is None)
                _check(is_there, "segments", "{} as input of its segment", segment, value)
            local.update(expr.outputs)
        for made in segment.outputs:
            _check(made in local, "segments", "{} computed by its segment", segment, made)
            known.add(made)
    for output in whole.outputs:
        _check(output in known, "segments", "the output {} computed", segmented, output)


# -- Kernel


def verify_kernel(kernel: Kernel) -> None:
    """Raises InternalError if a kernel uses memory or an index that isn't defined."""
    buffers = {tensor.buffer for tensor in kernel.tensors} | set(kernel.scratch)
    symbols = set(kernel.symbols)
    for parameter in kernel.scalars:
        if parameter.scalar.extent is not None:
            symbols |= parameter.scalar.extent.symbols
    for before, phase in zip([None, *kernel.phases], kernel.phases, strict=False):
        if phase.last_along is not None:
            grid = {*phase.grid, phase.last_along}
            is_known = before is not None and set(before.grid) == grid
            _check(is_known, "kernel", "a grid of the phase before less one axis", phase.grid)
        for kind in phase.grid:
            _check(kind.is_grid, "kernel", "grid types for the grid", kind)
        for kind in phase.block:
            _check(kind.is_block, "kernel", "block types for the block", kind)
        _verify_body(phase.body, buffers, symbols)


def _verify_symbols(expr: IntExpr, known: set[Symbol], where: object) -> None:
    unknown = sorted(str(symbol) for symbol in expr.symbols - known)
    _check(not unknown, "kernel", "indices that are bound", f"{', '.join(unknown)} in {where}")


def _verify_body(body: Sequence[Statement], outer: set[Buffer], known: set[Symbol]) -> None:
    buffers = set(outer)
    for statement in body:
        match statement:
            case For(index=index):
                _check(index not in known, "kernel", "each index bound once in a nest", index)
                _verify_symbols(statement.stop, known, f"the extent of {index}")
                _verify_symbols(statement.start, known, f"the start of {index}")
                is_loop = statement.parallel_type is not ParallelType.mma
                _check(is_loop, "kernel", "a parallel type of a loop", statement.parallel_type)
                _verify_body(statement.body, buffers, known | {index})
            case If():
                for less in statement.predicate:
                    for side in (less.a, less.b):
                        _verify_symbols(side, known, f"the condition {less}")
                _verify_body(statement.body, buffers, known)
                _verify_body(statement.otherwise, buffers, known)
            case Allocate(buffer=buffer):
                _verify_symbols(buffer.size, known, f"the size of {buffer.name}")
                buffers.add(buffer)
            case _:
                _verify_accesses(accesses(statement), buffers, known)
                if isinstance(statement, Compute | Scan | Scatter):
                    for size in operand_sizes(statement.inputs):
                        _verify_symbols(size, known, f"an operand of {statement.output}")
                if isinstance(statement, Reduce):
                    count = 3 if statement.op == "welford" else 1
                    what = f"{count} outputs of {statement.op}"
                    _check(len(statement.outputs) == count, "kernel", what, statement.outputs)


def _verify_accesses(used: Iterable[Access], buffers: set[Buffer], known: set[Symbol]) -> None:
    for access in used:
        name = access.buffer.name
        _check(access.buffer in buffers, "kernel", "{} allocated where it is used", access, name)
        _verify_symbols(access.index, known, access)
