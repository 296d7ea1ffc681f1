"""The input and output of a target's heuristics, for each scheduler.

A scheduler computes its facts once per fusion, with symbolic sizes.  A target turns the facts and
the sizes of a call into parameters, and the scheduler turns the parameters into loops.  Parameters
are frozen so that kernels can be cached by them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.scalars import ONE, ZERO, IntExpr
from .cascade import Levels


@dataclass(frozen=True, slots=True)
class PointwiseFacts:
    """rows        elements of the outer axes of the reference output
    columns     elements of its innermost range in memory
    groups      the rows without their last axis; None if there is only one
    transposed  elements of the range along which transposed inputs lie in memory, or None
    staged      elements of that range in the memory of these inputs alone, or None
    bytes       bytes of the widest computed element
    narrowest   bytes of the narrowest element of an input or output
    vector      bytes of the widest element that is moved in vectors; 0 if some tensor can't be
    inputs      how many inputs have all axes of the reference output, or are read at computed
                positions along its innermost one
    work        the cost of computing an element, in additions
    functions   how many functions such as exp it takes
    touched     bytes of all inputs and outputs
    steps       what is a multiple of the vector if reads at computed positions are aligned
    squares     bytes of an element of the transposed inputs, if these, and all others, can be moved
                in vectors along their own memory; 0 if not
    tiles       bytes of one element of each of the transposed inputs together
    follow      True if the rows of transposed inputs follow each other along the columns
    joined      where the parts begin and end that columns are joined of, if they are: what is in
                one isn't computed for the others
    stored      how many outputs have all axes
    apart       how many inputs and outputs have rows that don't follow each other in their memory
    """

    rows: IntExpr
    columns: IntExpr
    groups: IntExpr | None
    transposed: IntExpr | None
    bytes: int
    narrowest: int
    vector: int
    inputs: int
    work: int
    functions: int
    touched: IntExpr
    steps: tuple[IntExpr, ...] = ()
    across: IntExpr = ONE
    staged: IntExpr | None = None
    squares: int = 0
    tiles: int = 0
    follow: bool = False
    joined: tuple[IntExpr, ...] = ()
    stored: int = 1
    apart: int = 0


@dataclass(frozen=True, slots=True)
class PointwiseParameters:
    """lanes      elements of one vector
    unroll     vectors per unrolled step; with a tile: vectors that share a cache line; with the
               lanes along the rows: the columns, if each is written out
    chunk      elements of the innermost range per task; 0: a task takes the whole row
    tile       rows per task if inputs are transposed; 0: none are
    prefetch   how many bytes ahead reads fetch
    rows       True if a task takes all rows of the last outer axis: short ones, for each of which
               finding its position (a division per axis) would take longer than computing it;
               with a tile: few ones, of which it reads a cache line's after the other's
    across     True if the lanes run along the rows, which are shorter than a vector, or joined of
               many parts; then a chunk is of rows; with a tile: along the columns, and a step
               takes all rows, which are few
    staged     True if a tile is put together in a buffer and then stored row by row
    """

    lanes: int
    unroll: int
    chunk: int
    tile: int = 0
    prefetch: int = 0
    rows: bool = False
    across: bool = False
    staged: bool = False


@dataclass(frozen=True, slots=True)
class ReductionFacts:
    """inner      the innermost axis is reduced
    kept       elements of the axes that are kept
    reduced    elements of the axes that are reduced
    chain      extents of the loops over them, outermost first; their product is `reduced`
    bytes      bytes of the widest computed element
    count      how many reductions there are
    work       the cost of computing an element, in additions
    functions  how many functions such as exp it takes
    touched    bytes of all inputs and outputs
    range      elements of the innermost range in memory
    across     elements of the innermost range of kept axes, if the innermost axis is reduced
    vector     bytes of the widest element that is moved in vectors; 0 if some tensor can't be
    rows       how many inputs several passes read, and how many computed tensors are kept for them
    weights    how many inputs have none of the axes that are kept
    steps      what is a multiple of the vector if reads at computed positions are aligned
    repeated   bytes of the largest input that several rows read, such as the mask of all heads
    following  how many functions follow from the rows' results alone
    """

    inner: bool
    kept: IntExpr
    reduced: IntExpr
    chain: tuple[IntExpr, ...]
    bytes: int
    count: int
    work: int
    functions: int
    touched: IntExpr
    range: IntExpr
    vector: int
    rows: tuple[int, int]
    weights: int
    steps: tuple[IntExpr, ...] = ()
    across: IntExpr = ONE
    repeated: IntExpr = ZERO
    following: int = 0


@dataclass(frozen=True, slots=True)
class ReductionParameters:
    """inner      the lanes run along the axes that are reduced, not along those that are kept
    lanes      elements of one vector
    unroll     vectors (inner) or rows (outer) per unrolled step
    block      columns per task (outer); rows per task whose results are used in vectors (inner), or
               0: a task is one row
    parts      parts into which the reduced axes are split over the grid; 1: not split
    prefetch   how many bytes ahead reads fetch
    cascade    where a sum's chain of additions is cut
    keeps      True if there is room to keep a row of values that are expensive to recompute
    whole      the parameters of passes over rows that read one range of memory, where others don't
    outermost  True if the parts are of the outermost reduced axis, not of the innermost (inner)
    """

    inner: bool
    lanes: int
    unroll: int
    block: int
    parts: int
    prefetch: int = 0
    cascade: Levels = ()
    keeps: bool = True
    whole: ReductionParameters | None = None
    outermost: bool = False

    @property
    def keeps_reads(self) -> bool:
        """True if what all passes read at computed positions is in registers, as inputs are."""
        return False

    def recomputing(self) -> ReductionParameters:
        """The same parameters, but no row is kept."""
        return replace(self, keeps=False)


@dataclass(frozen=True, slots=True)
class InnerOuterFacts:
    """rows     the facts about the reductions of rows
    columns  how many sums of columns there are
    """

    rows: ReductionFacts
    columns: int


@dataclass(frozen=True, slots=True)
class InnerOuterParameters:
    """rows     the parameters of the rows' loops; `parts` is the number of tasks
    columns  where a task's sums of columns are cut, along its rows
    """

    rows: ReductionParameters
    columns: Levels


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """inner      the scanned axis is innermost in memory
    rows       elements of the axes outside: scans that are independent of each other
    length     elements of the scanned axis
    columns    elements of the innermost range in memory; 1 if that is the scanned axis
    bytes      bytes of the widest computed element
    running    bytes of the running results of all scans, for one column
    work       the cost of computing an element, in additions
    touched    bytes of all inputs and outputs
    """

    inner: bool
    rows: IntExpr
    length: IntExpr
    columns: IntExpr
    bytes: int
    running: int
    work: int
    touched: IntExpr


@dataclass(frozen=True, slots=True)
class ScanParameters:
    """inner      the scanned axis is innermost in memory
    lanes      elements of one vector
    unroll     vectors per unrolled step
    block      columns per task (outer)
    prefetch   how many bytes ahead reads fetch
    """

    inner: bool
    lanes: int
    unroll: int
    block: int
    prefetch: int = 0


@dataclass(frozen=True, slots=True)
class ScatterFacts:
    """rows       elements of the axes outside: scatters that are independent of each other
    length     elements of the scattered axes
    columns    elements of the innermost range in memory; None if it is scattered
    bytes      bytes of the widest computed element, of those that vary along the columns
    combined   bytes of the narrowest element with which values are combined; None if there is none
    work       the cost of computing a value, in additions
    touched    bytes of all inputs and outputs
    """

    rows: IntExpr
    length: IntExpr
    columns: IntExpr | None
    bytes: int
    combined: int | None
    work: int
    touched: IntExpr


@dataclass(frozen=True, slots=True)
class ScatterParameters:
    """lanes          elements of one vector
    unroll         vectors per unrolled step
    block          columns per task; on hardware threads, threads per block
    is_concurrent  threads share all axes, so the order of the values is open
    prefetch       how many bytes ahead reads fetch
    has_rows       each block of threads that share all axes is in one row of columns, of which it
                   combines `unroll` times as many as it has threads
    """

    lanes: int
    unroll: int
    block: int
    is_concurrent: bool = False
    prefetch: int = 0
    has_rows: bool = False


Facts = PointwiseFacts | ReductionFacts | InnerOuterFacts | ScanFacts | ScatterFacts


def without_cascade(parameters: object) -> object:
    """The decisions that don't follow from others and the sizes: all but where sums are cut."""
    match parameters:
        case ReductionParameters():
            return replace(parameters, cascade=())
        case InnerOuterParameters():
            return InnerOuterParameters(replace(parameters.rows, cascade=()), ())
        case _:
            return parameters


def without_kept_rows(
    parameters: object,
) -> ReductionParameters | InnerOuterParameters | None:
    """The same parameters for a kernel that recomputes its rows; None if it has kept none."""
    match parameters:
        case ReductionParameters(keeps=True):
            return parameters.recomputing()
        case InnerOuterParameters(rows=ReductionParameters(keeps=True) as rows):
            return replace(parameters, rows=rows.recomputing())
        case _:
            return None
