"""Decisions for a processor with four cores and vectors of 32 bytes."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest

from pyfuser.analysis.size_conditions import SizeConditions
from pyfuser.devices.cpu import heuristics
from pyfuser.ir.scalars import Integer, Symbol
from pyfuser.target.parameters import (
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
)
from tests.support.targets import PRETENDED

PROCESSOR = PRETENDED.processor
ROWS = Integer.of(4096)


def rows_of(columns: int) -> PointwiseFacts:
    """The facts about an addition of float32 to rows of so many columns."""
    return PointwiseFacts(
        rows=ROWS, columns=Integer.of(columns), groups=None, transposed=None, bytes=4,
        narrowest=4, vector=4, inputs=1, work=1, functions=0, touched=ROWS,
    )  # fmt: skip


def column_sums(rows: int, columns: int, reduced: int) -> ReductionFacts:
    """The facts about sums over `reduced` elements, of float32 with a weight for each row."""
    kept, count = Integer.of(rows * columns), Integer.of(reduced)
    return ReductionFacts(
        inner=False, kept=kept, reduced=count, chain=(count,), bytes=4, count=1, work=1,
        functions=0, touched=kept * reduced * 4, range=Integer.of(columns), vector=4, rows=(0, 0),
        weights=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns", "block", "parts"), [(64, 16, 16, 1), (1, 1024, 1024, 8), (1, 16, 16, 8)]
)
def test_blocks_of_columns_end_with_a_row(rows: int, columns: int, block: int, parts: int) -> None:
    made = heuristics.reduction(PROCESSOR, column_sums(rows, columns, 4096), {})
    assert (made.block, made.parts) == (block, parts)


@pytest.mark.parametrize(("work", "block"), [(1, 512), (50, 256), (100, 128), (1000, 128)])
def test_much_work_on_few_rows_is_for_all_workers(work: int, block: int) -> None:
    facts = replace(column_sums(1, 512, 8), work=work)
    made = heuristics.reduction(PROCESSOR, facts, {})
    assert (made.block, made.parts) == (block, 1)


@pytest.mark.parametrize(("work", "parts"), [(1, 1), (10, 1), (40, 8)])
def test_much_work_on_one_row_is_for_all_workers(work: int, parts: int) -> None:
    facts = replace(column_sums(1, 1, 16384), inner=True, work=work)
    assert heuristics.reduction(PROCESSOR, facts, {}).parts == parts


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 4096])
def test_a_step_of_columns_has_no_more_rows_than_there_are(rows: int) -> None:
    made = heuristics.reduction(PROCESSOR, column_sums(64, 256, rows), {})
    assert made.unroll == min(rows, 4)


def transposed(rows: int, columns: int, size: int) -> PointwiseFacts:
    """The facts about the copy of a transposed matrix of elements of this size."""
    elements = rows * columns
    return PointwiseFacts(
        rows=Integer.of(rows), columns=Integer.of(columns), groups=None,
        transposed=Integer.of(rows), bytes=max(size, 4), narrowest=size, vector=size, inputs=1,
        work=1, functions=0, touched=Integer.of(2 * elements * size),
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("columns", [300, 64])
def test_tiles_move_whole_cache_lines(size: int, columns: int) -> None:
    made = heuristics.pointwise(PROCESSOR, transposed(4096, columns, size), {})
    line = PROCESSOR.cache_line_bytes // size
    assert made.unroll * made.lanes == line
    assert made.tile % line == made.chunk % line == 0


def test_small_matrices_have_tiles_for_every_core() -> None:
    facts = transposed(256, 256, 4)
    for cores in (1, 4, 16):
        made = heuristics.pointwise(replace(PROCESSOR, cores=cores), facts, {})
        assert -(-256 // made.tile) * -(-256 // made.chunk) >= 4 * cores


def test_a_task_with_all_rows_takes_them_by_the_line() -> None:
    tile = heuristics.pointwise(PROCESSOR, transposed(4096, 4096, 4), {}).tile
    assert heuristics.pointwise(PROCESSOR, transposed(tile, 65536, 4), {}).rows
    assert not heuristics.pointwise(PROCESSOR, transposed(tile + 1, 65536, 4), {}).rows


@pytest.mark.parametrize(("batch", "ahead"), [(4096, 4096), (1, 0)])
@pytest.mark.parametrize("size", [2, 4])
def test_short_transposed_rows_fetch_the_next_squares(size: int, batch: int, ahead: int) -> None:
    """Rows of 64 elements in squares of a line; not if all of them are in a cache."""
    facts = transposed(64, 1000, size)
    facts = replace(facts, rows=facts.rows * batch, touched=facts.touched * batch)
    processor = replace(PROCESSOR, vector_bits=512)
    assert heuristics.pointwise(processor, facts, {}).prefetch == ahead
    others_follow = replace(facts, staged=Integer.of(64 * 100))
    assert heuristics.pointwise(processor, others_follow, {}).prefetch == (256 if ahead else 0)


@pytest.mark.parametrize(
    ("rows", "columns", "size", "is_staged"),
    [
        (8192, 4096, 4, False),
        (8192, 4096, 2, False),
        (8192, 4099, 4, True),
        (8192, 4099, 2, True),
        (65536, 4096, 4, False),
        (65536, 4096, 2, True),
        (65568, 4096, 2, False),
    ],
)
def test_square_tiles_of_whole_lines(rows: int, columns: int, size: int, is_staged: bool) -> None:
    """Where whole lines are stored as fast far apart as side by side; unless many rows in half
    precision are read together that are a multiple of 128 KB apart."""
    processor = replace(PROCESSOR, cpu_name="znver5", vector_bits=512)
    facts = transposed(rows, columns, size)
    made = heuristics.pointwise(processor, replace(facts, staged=facts.rows), {})
    assert isinstance(made, PointwiseParameters) and made.staged == is_staged


@pytest.mark.parametrize(("columns", "is_across"), [(9, True), (16, True), (20, False)])
def test_joined_columns_have_a_lane_for_each_row(columns: int, is_across: bool) -> None:
    """Each column is then computed once; up to 16 are stored together."""
    facts = replace(rows_of(columns), across=ROWS)
    joined = (Integer.of(0), Integer.of(columns))
    assert heuristics.pointwise(PROCESSOR, replace(facts, joined=joined), {}).across == is_across
    assert not heuristics.pointwise(PROCESSOR, facts, {}).across


@pytest.mark.parametrize(
    ("columns", "width", "is_across"),
    [(20, 1, True), (64, 1, True), (65, 1, False), (60, 3, True), (64, 16, False), (48, 24, False)],
)
def test_many_joined_parts_have_a_lane_for_each_row(
    columns: int, width: int, is_across: bool
) -> None:
    """A vector of a row would compute all parts that are in it."""
    ends = tuple(Integer.of(end) for end in range(0, columns + 1, width))
    facts = replace(rows_of(columns), across=ROWS, joined=ends)
    made = heuristics.pointwise(PROCESSOR, facts, {})
    assert made.across == is_across and (made.unroll == columns) == is_across


@pytest.mark.parametrize(
    ("functions", "rows", "is_across"),
    [(0, 1 << 10, False), (1, 1 << 10, True), (1, 1 << 20, False)],
)
def test_two_parts_with_functions_in_a_vector(functions: int, rows: int, is_across: bool) -> None:
    """They are computed for all lanes, which takes longer than to store rows of few columns."""
    ends = tuple(Integer.of(end) for end in (0, 4, 12, 20))
    facts = replace(rows_of(20), across=ROWS, joined=ends, functions=functions)
    facts = replace(facts, touched=Integer.of(rows * 20 * 8))
    assert heuristics.pointwise(PROCESSOR, facts, {}).across == is_across


@pytest.mark.parametrize(
    ("columns", "end", "unroll"), [(64, 32, 4), (64, 16, 2), (64, 8, 1), (64, 20, 1), (512, 8, 4)]
)
def test_windows_of_short_rows_end_with_a_step(columns: int, end: int, unroll: int) -> None:
    facts = replace(rows_of(columns), steps=(Integer.of(end),))
    assert heuristics.pointwise(PROCESSOR, facts, {}).unroll == unroll


@pytest.mark.parametrize(("columns", "end", "lanes"), [(64, 32, 32), (64, 16, 16), (64, 0, 64)])
def test_functions_of_joined_rows_end_with_a_window(columns: int, end: int, lanes: int) -> None:
    """Vectors that are computed together don't take elements of two windows."""
    processor = replace(PROCESSOR, vector_bits=512)
    facts = replace(rows_of(columns), work=40, functions=1, steps=(Integer.of(end),))
    assert heuristics.pointwise(processor, facts, {}).lanes == lanes


@pytest.mark.parametrize(
    ("columns", "rows", "block"), [(16384, 3, 1024), (16384, 16, 4096), (2048, 3, 2048)]
)
def test_blocks_of_few_rows_are_small(columns: int, rows: int, block: int) -> None:
    """Unless one has all columns."""
    processor = replace(PROCESSOR, l1_bytes=48 << 10)
    assert heuristics.reduction(processor, column_sums(32, columns, rows), {}).block == block


@pytest.mark.parametrize("columns", [3, 12])
def test_lanes_along_rows_and_across_them_are_candidates(columns: int) -> None:
    """Whichever the heuristics chose."""
    facts = replace(rows_of(columns), across=ROWS)
    chosen = heuristics.pointwise(PROCESSOR, facts, {})
    found = PRETENDED.candidates(facts, chosen, {})
    assert chosen.across == (columns == 3)
    assert {isinstance(each, PointwiseParameters) and each.across for each in found} == {
        True,
        False,
    }
    sums = replace(column_sums(1, 1, columns), inner=True, across=ROWS, kept=ROWS)
    for is_persistent in (False, True):
        choose = heuristics.inner_persistent if is_persistent else heuristics.reduction
        made = choose(PROCESSOR, sums, {})
        others = PRETENDED.candidates(sums, made, {}, is_persistent)
        kinds = {each.inner for each in (made, *others) if isinstance(each, ReductionParameters)}
        assert kinds == ({True, False} if is_persistent or columns == 12 else {False})


@pytest.mark.parametrize(
    ("columns", "together"), [(24, 1), (31, 4), (40, 1), (48, 1), (56, 4), (65, 4), (1000, 4)]
)
def test_vectors_are_computed_together_if_there_are_functions(columns: int, together: int) -> None:
    """As many as compute few elements beyond the end of a row."""
    kept, row = Integer.of(64), Integer.of(columns)
    sums = replace(column_sums(1, 1, columns), inner=True, kept=kept, range=row, functions=1)
    assert heuristics.reduction(PROCESSOR, sums, {}).lanes == 8 * together
    assert heuristics.inner_persistent(PROCESSOR, sums, {}).lanes == 8 * together
    assert heuristics.reduction(PROCESSOR, replace(sums, functions=0), {}).lanes == 8
    with_more_registers = replace(PROCESSOR, vector_bits=512)
    assert heuristics.reduction(with_more_registers, sums, {}).lanes == 16


@pytest.mark.parametrize(
    ("work", "functions", "narrowest", "together"),
    [(9, 1, 4, 4), (9, 1, 2, 1), (9, 0, 4, 1), (25, 0, 4, 4), (25, 3, 2, 4), (97, 9, 4, 2)],
)
def test_many_registers_compute_long_chains_and_functions_together(
    work: int, functions: int, narrowest: int, together: int
) -> None:
    """But functions of half precision in pairs."""
    processor, count = replace(PROCESSOR, vector_bits=512), Integer.of(1 << 16)
    facts = PointwiseFacts(
        rows=Integer.of(1), columns=count, groups=None, transposed=None, bytes=4,
        narrowest=narrowest, vector=4, inputs=1, work=work, functions=functions, touched=count,
    )  # fmt: skip
    assert heuristics.pointwise(processor, facts, {}).lanes == 16 * together
    sums = replace(column_sums(1, 1, 1 << 16), inner=True, work=work, functions=functions)
    is_long = work > 24
    assert heuristics.reduction(processor, sums, {}).lanes == 16 * (together if is_long else 1)


@pytest.mark.parametrize(
    ("vector", "work", "functions", "step"),
    [(2, 26, 1, (16, 2)), (4, 26, 1, (64, 1)), (2, 33, 1, (64, 1)), (2, 26, 3, (64, 1))],
)
def test_a_norm_and_one_function_of_half_precision_take_pairs(
    vector: int, work: int, functions: int, step: tuple[int, int]
) -> None:
    """Whose work is that of several passes."""
    rows = replace(
        column_sums(1, 4096, 512), inner=True, vector=vector, work=work, functions=functions
    )
    made = heuristics.persistent_along(replace(PROCESSOR, vector_bits=512), rows, {})
    assert (made.lanes, made.unroll) == step


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_parameters_are_numbers_and_not_expressions(size: int) -> None:
    """Sizes of a call note what they are compared with; a parameter must not be one of them."""
    for rows, columns in itertools.product((16, 65, 300, 4096, 60000), repeat=2):
        conditions = SizeConditions()
        sizes = {
            name: conditions.number(Symbol.of(name), value)
            for name, value in (("i0", rows), ("i1", columns))
        }
        i0, i1 = Symbol.of("i0"), Symbol.of("i1")
        for staged in (None, i0, i0 * 2):
            facts = replace(
                transposed(1, 1, size), rows=i0, columns=i1, transposed=i0, staged=staged
            )
            for processor in (PROCESSOR, replace(PROCESSOR, l3_bytes=0)):
                made = heuristics.pointwise(processor, facts, sizes)
                kinds = {type(getattr(made, field.name)) for field in fields(made)}
                assert kinds <= {int, bool}, made


@pytest.mark.parametrize(("stored", "vectors"), [(1, 4), (2, 1)])
def test_squares_of_several_outputs_have_a_vector_of_each_row(stored: int, vectors: int) -> None:
    """Half precision, of which a cache line has four vectors of the eight lanes of float32."""
    facts = replace(transposed(96, 3136, 2), stored=stored)
    assert heuristics.pointwise(PROCESSOR, facts, {}).unroll == vectors
