"""The memory pool's runs, as LLVM IR text: an allocator that splits free memory and joins it again.

The pool's range of addresses is a row of *runs*: a block in use, free and *warm* (memory is there),
or free and *cold* (addresses without memory).  Each has a *record*: room for what is said about the
tensor in it (memory_pool_text.py), and the fields that are kept here.  Free runs hang in one list
per state and size class, and a table has their records at their first and last granule, so that a
run finds its neighbours.  Invariant: never are two free runs of one state next to each other, so
nothing is lost to blocks of the wrong size but the gaps between those in use.  All of it, counters
included, is guarded by one spin lock: its sections take tens of nanoseconds.
"""

from __future__ import annotations

HUGE_PAGE_BYTES = 2 << 20
# Blocks begin and end at multiples of it: whole pages nearly everywhere, at most 6 % of a block.
GRANULE_BITS = 14
GRANULE_BYTES = 1 << GRANULE_BITS
# 8 classes for each power of two up to 2**47 bytes, the address space of x86-64 and AArch64.
TOP_CLASS_BITS = 47
FREE_LISTS = 8 * (TOP_CLASS_BITS + 1)
# The best fit of a class is searched among this many runs, the last released first.
_MOST_COMPARED = 32
MOST_DIMENSIONS = 32
HEADER_BYTES = 128
RECORD_BYTES = HEADER_BYTES + 16 * MOST_DIMENSIONS


def runs_text() -> str:
    """Part of the pool's module: `lock` and `unlock`; for who has the lock, `add` (to a counter),
    `best_fit`, `take`, `insert`; for who has not, `put`, `carve`, `oldest`."""
    return _DATA + _LOCK + _FREE_RUNS + _BEST_FIT + _PUT + _CARVE + _OLDEST


_DATA = f"""
; A record: DLManagedTensor; next in its list, what points to it there, size, time of release,
; 1 if cold; padding to 128 bytes.
%record = type {{ ptr, i32, i32, i32, i32, ptr, ptr, i64, ptr, ptr,
                  ptr, ptr, i64, i64, i64, [3 x i64] }}
; lock, limit, mapped, cached, peak, allocations, misses, clock
@counters = global [8 x i64] zeroinitializer, align 64
; first the warm runs, then the cold ones
@free_lists = global [{2 * FREE_LISTS} x ptr] zeroinitializer, align 64
; the range's first address, and for each of its granules the record of the free run that begins or
; ends there; one more cell before and behind
@base = global i64 0
@table = global ptr null

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i64 @llvm.ctlz.i64(i64, i1)
"""

_LOCK = """
define void @lock() nounwind {
entry:
  br label %try
try:
  %old = atomicrmw xchg ptr @counters, i64 1 acquire
  %got_it = icmp eq i64 %old, 0
  br i1 %got_it, label %done, label %wait
wait:
  %ignored = call i32 @sched_yield()
  br label %try
done:
  ret void
}

define void @unlock() nounwind {
  store atomic i64 0, ptr @counters release, align 8
  ret void
}

; counters[i] += amount, with the lock held
define internal i64 @add(i64 %i, i64 %amount) nounwind {
  %slot = getelementptr i64, ptr @counters, i64 %i
  %old = load i64, ptr %slot
  %new = add i64 %old, %amount
  store i64 %new, ptr %slot
  ret i64 %new
}
"""

_FREE_RUNS = f"""
; Where a free run of this size hangs: its leading bit and the three bits behind it.
define internal ptr @list_of(i64 %size, i64 %cold) nounwind {{
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 false)
  %width = sub i64 64, %zeros
  %shift = sub i64 %width, 4
  %leading = lshr i64 %size, %shift
  %octave = mul i64 %width, 8
  %in_octave = sub i64 %leading, 8
  %class = add i64 %octave, %in_octave
  %half = mul i64 %cold, {FREE_LISTS}
  %i = add i64 %half, %class
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  ret ptr %list
}}

; The table's cell of the granule that begins at an address.
define internal ptr @cell(i64 %address) nounwind {{
  %base = load i64, ptr @base
  %table = load ptr, ptr @table
  %offset = sub i64 %address, %base
  %granule = ashr i64 %offset, {GRANULE_BITS}
  %i = add i64 %granule, 1
  %cell = getelementptr ptr, ptr %table, i64 %i
  ret ptr %cell
}}

; Writes a record, or null, at the first and the last granule of a run.
define internal void @mark(ptr %record, ptr %mark) nounwind {{
  %first_address = load i64, ptr %record
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %size = load i64, ptr %size_slot
  %end = add i64 %first_address, %size
  %first = call ptr @cell(i64 %first_address)
  %behind = call ptr @cell(i64 %end)
  %last = getelementptr ptr, ptr %behind, i64 -1
  store ptr %mark, ptr %first
  store ptr %mark, ptr %last
  ret void
}}

; A free run out of its list and the table.
define internal void @take_out(ptr %record) nounwind {{
entry:
  call void @mark(ptr %record, ptr null)
  %next_slot = getelementptr %record, ptr %record, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  %link_slot = getelementptr %record, ptr %record, i64 0, i32 11
  %link = load ptr, ptr %link_slot
  store ptr %next, ptr %link
  %is_last = icmp eq ptr %next, null
  br i1 %is_last, label %done, label %relink
relink:
  %next_link = getelementptr %record, ptr %next, i64 0, i32 11
  store ptr %link, ptr %next_link
  br label %done
done:
  ret void
}}

; A neighbour of a run, if there is one that is free and in the same state, becomes part of it.
define internal void @swallow(ptr %record, ptr %neighbour) nounwind {{
entry:
  %is_none = icmp eq ptr %neighbour, null
  br i1 %is_none, label %done, label %compare
compare:
  %cold_slot = getelementptr %record, ptr %record, i64 0, i32 14
  %cold = load i64, ptr %cold_slot
  %its_cold_slot = getelementptr %record, ptr %neighbour, i64 0, i32 14
  %its_cold = load i64, ptr %its_cold_slot
  %is_alike = icmp eq i64 %cold, %its_cold
  br i1 %is_alike, label %join, label %done
join:
  call void @take_out(ptr %neighbour)
  %data = load i64, ptr %record
  %its_data = load i64, ptr %neighbour
  %is_before = icmp ult i64 %its_data, %data
  %joined_data = select i1 %is_before, i64 %its_data, i64 %data
  store i64 %joined_data, ptr %record
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %size = load i64, ptr %size_slot
  %its_size_slot = getelementptr %record, ptr %neighbour, i64 0, i32 12
  %its_size = load i64, ptr %its_size_slot
  %joined_size = add i64 %size, %its_size
  store i64 %joined_size, ptr %size_slot
  %time_slot = getelementptr %record, ptr %record, i64 0, i32 13
  %time = load i64, ptr %time_slot
  %its_time_slot = getelementptr %record, ptr %neighbour, i64 0, i32 13
  %its_time = load i64, ptr %its_time_slot
  %is_older = icmp ult i64 %time, %its_time
  %joined_time = select i1 %is_older, i64 %its_time, i64 %time
  store i64 %joined_time, ptr %time_slot
  call void @free(ptr %neighbour)
  br label %done
done:
  ret void
}}

; A run becomes free: joined with its neighbours, into the table and the front of its list.
define internal void @insert(ptr %record) nounwind {{
entry:
  %data = load i64, ptr %record
  %first = call ptr @cell(i64 %data)
  %before_cell = getelementptr ptr, ptr %first, i64 -1
  %before = load ptr, ptr %before_cell
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %own_size = load i64, ptr %size_slot
  %end = add i64 %data, %own_size
  %behind_cell = call ptr @cell(i64 %end)
  %behind = load ptr, ptr %behind_cell
  call void @swallow(ptr %record, ptr %before)
  call void @swallow(ptr %record, ptr %behind)
  call void @mark(ptr %record, ptr %record)
  %size = load i64, ptr %size_slot
  %cold_slot = getelementptr %record, ptr %record, i64 0, i32 14
  %cold = load i64, ptr %cold_slot
  %list = call ptr @list_of(i64 %size, i64 %cold)
  %next = load ptr, ptr %list
  %next_slot = getelementptr %record, ptr %record, i64 0, i32 10
  store ptr %next, ptr %next_slot
  %link_slot = getelementptr %record, ptr %record, i64 0, i32 11
  store ptr %list, ptr %link_slot
  store ptr %record, ptr %list
  %is_last = icmp eq ptr %next, null
  br i1 %is_last, label %done, label %relink
relink:
  %next_link = getelementptr %record, ptr %next, i64 0, i32 11
  store ptr %next_slot, ptr %next_link
  br label %done
done:
  ret void
}}

; Takes a free run out and gives what lies beyond its first `size` bytes back.
define internal void @take(ptr %record, i64 %size) nounwind {{
entry:
  call void @take_out(ptr %record)
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %whole = load i64, ptr %size_slot
  %is_too_big = icmp ugt i64 %whole, %size
  br i1 %is_too_big, label %describe, label %done
describe:
  %rest = call ptr @malloc(i64 {RECORD_BYTES})
  %no_memory = icmp eq ptr %rest, null
  br i1 %no_memory, label %done, label %split
split:
  store i64 %size, ptr %size_slot
  %data = load i64, ptr %record
  %rest_data = add i64 %data, %size
  store i64 %rest_data, ptr %rest
  %rest_size = sub i64 %whole, %size
  %rest_size_slot = getelementptr %record, ptr %rest, i64 0, i32 12
  store i64 %rest_size, ptr %rest_size_slot
  %time_slot = getelementptr %record, ptr %record, i64 0, i32 13
  %time = load i64, ptr %time_slot
  %rest_time_slot = getelementptr %record, ptr %rest, i64 0, i32 13
  store i64 %time, ptr %rest_time_slot
  %cold_slot = getelementptr %record, ptr %record, i64 0, i32 14
  %cold = load i64, ptr %cold_slot
  %rest_cold_slot = getelementptr %record, ptr %rest, i64 0, i32 14
  store i64 %cold, ptr %rest_cold_slot
  call void @insert(ptr %rest)
  br label %done
done:
  ret void
}}
"""

_BEST_FIT = f"""
; The smallest warm run of at least `size` bytes; null if there is none.
define internal ptr @best_fit(i64 %size) nounwind {{
entry:
  %first_list = call ptr @list_of(i64 %size, i64 0)
  %end = getelementptr ptr, ptr @free_lists, i64 {FREE_LISTS}
  br label %search
search:
  %list = phi ptr [ %first_list, %entry ], [ %next_list, %searched ]
  %is_end = icmp eq ptr %list, %end
  br i1 %is_end, label %nothing, label %open
open:
  %head = load ptr, ptr %list
  br label %compare
compare:
  %run = phi ptr [ %head, %open ], [ %next, %compare_one ]
  %best = phi ptr [ null, %open ], [ %better, %compare_one ]
  %least = phi i64 [ -1, %open ], [ %lesser, %compare_one ]
  %left = phi i64 [ {_MOST_COMPARED}, %open ], [ %left_next, %compare_one ]
  %is_last = icmp eq ptr %run, null
  %is_enough = icmp eq i64 %left, 0
  %stop = or i1 %is_last, %is_enough
  br i1 %stop, label %searched, label %compare_one
compare_one:
  %run_size_slot = getelementptr %record, ptr %run, i64 0, i32 12
  %run_size = load i64, ptr %run_size_slot
  %fits = icmp uge i64 %run_size, %size
  %is_less = icmp ult i64 %run_size, %least
  %is_better = and i1 %fits, %is_less
  %better = select i1 %is_better, ptr %run, ptr %best
  %lesser = select i1 %is_better, i64 %run_size, i64 %least
  %left_next = sub i64 %left, 1
  %next_slot = getelementptr %record, ptr %run, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  br label %compare
searched:
  %next_list = getelementptr ptr, ptr %list, i64 1
  %has_found = icmp ne ptr %best, null
  br i1 %has_found, label %found, label %search
found:
  ret ptr %best
nothing:
  ret ptr null
}}
"""

_PUT = """
; A run that the caller holds, and that counts as cached, becomes free: warm, or cold.
define void @put(ptr %record, i64 %cold) nounwind {
entry:
  call void @lock()
  %cold_slot = getelementptr %record, ptr %record, i64 0, i32 14
  store i64 %cold, ptr %cold_slot
  %is_cold = icmp ne i64 %cold, 0
  br i1 %is_cold, label %uncount, label %put
uncount:
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %size = load i64, ptr %size_slot
  %minus = sub i64 0, %size
  %cached = call i64 @add(i64 3, i64 %minus)
  %mapped = call i64 @add(i64 2, i64 %minus)
  br label %put
put:
  call void @insert(ptr %record)
  call void @unlock()
  ret void
}
"""


def _search(begin: int, end: int, compare: str, **state: str) -> str:
    """From the block %entry to the block %choose by every run of the free lists [begin, end).

    `state`: name -> type and initial value of what is found out.  `compare` sees a %run and, for
    each name, %run_<name>; it ends in the block %compared, and defines %new_<name>.
    """
    phis, run_phis = [], []
    for name, (kind, first) in ((name, text.split()) for name, text in state.items()):
        phis.append(f"  %{name} = phi {kind} [ {first}, %entry ], [ %run_{name}, %searched ]")
        run_phis.append(
            f"  %run_{name} = phi {kind} [ %{name}, %open ], [ %new_{name}, %compared ]"
        )
    lines, run_lines = "\n".join(phis), "\n".join(run_phis)
    return f"""\
  br label %search
search:
  %i = phi i64 [ {begin}, %entry ], [ %i_next, %searched ]
{lines}
  %is_end = icmp eq i64 %i, {end}
  br i1 %is_end, label %choose, label %open
open:
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  %head = load ptr, ptr %list
  br label %compare
compare:
  %run = phi ptr [ %head, %open ], [ %next, %compared ]
{run_lines}
  %is_last = icmp eq ptr %run, null
  br i1 %is_last, label %searched, label %look
look:
{compare}
  %next_slot = getelementptr %record, ptr %run, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  br label %compare
searched:
  %i_next = add i64 %i, 1
  br label %search"""


_COMPARE_NEEDS = f"""\
  %data = load i64, ptr %run
  %first = call ptr @cell(i64 %data)
  %before_cell = getelementptr ptr, ptr %first, i64 -1
  %before = load ptr, ptr %before_cell
  %is_alone = icmp eq ptr %before, null
  br i1 %is_alone, label %compared, label %measure
measure:
  %before_size_slot = getelementptr %record, ptr %before, i64 0, i32 12
  %before_size = load i64, ptr %before_size_slot
  %is_enough = icmp uge i64 %before_size, %size
  %most = sub i64 %size, {GRANULE_BYTES}
  %helps = select i1 %is_enough, i64 %most, i64 %before_size
  br label %compared
compared:
  %warm = phi i64 [ 0, %look ], [ %helps, %measure ]
  %need = sub i64 %size, %warm
  %run_size_slot = getelementptr %record, ptr %run, i64 0, i32 12
  %run_size = load i64, ptr %run_size_slot
  %fits = icmp uge i64 %run_size, %need
  %is_less = icmp ult i64 %need, %run_least
  %is_equal = icmp eq i64 %need, %run_least
  %is_smaller = icmp ult i64 %run_size, %run_smallest
  %breaks_tie = and i1 %is_equal, %is_smaller
  %is_preferred = or i1 %is_less, %breaks_tie
  %is_better = and i1 %fits, %is_preferred
  %new_best = select i1 %is_better, ptr %run, ptr %run_best
  %new_least = select i1 %is_better, i64 %need, i64 %run_least
  %new_smallest = select i1 %is_better, i64 %run_size, i64 %run_smallest"""
_LEAST_NEED = _search(
    FREE_LISTS,
    2 * FREE_LISTS,
    _COMPARE_NEEDS,
    best="ptr null",
    least="i64 -1",
    smallest="i64 -1",
)

_CARVE = f"""
; A cold run for the caller to get memory for, so that there is a warm run of `size` bytes then: of
; those that need the least memory, thanks to a warm run before them, the smallest.  It reaches to a
; multiple of `step` where there are addresses, and counts as cached.  Null: no addresses.
define ptr @carve(i64 %size, i64 %step) nounwind {{
entry:
  call void @lock()
{_LEAST_NEED}
choose:
  %is_none = icmp eq ptr %best, null
  br i1 %is_none, label %nothing, label %found
found:
  %best_data = load i64, ptr %best
  %end = add i64 %best_data, %least
  %beyond = add i64 %end, %step
  %last = sub i64 %beyond, 1
  %mask = sub i64 0, %step
  %end_up = and i64 %last, %mask
  %wanted = sub i64 %end_up, %best_data
  call void @take(ptr %best, i64 %wanted)
  %size_slot = getelementptr %record, ptr %best, i64 0, i32 12
  %taken = load i64, ptr %size_slot
  %mapped = call i64 @add(i64 2, i64 %taken)
  %cached = call i64 @add(i64 3, i64 %taken)
  %misses = call i64 @add(i64 6, i64 1)
  call void @unlock()
  ret ptr %best
nothing:
  call void @unlock()
  ret ptr null
}}
"""

_COMPARE_TIMES = """\
  br label %compared
compared:
  %its_time_slot = getelementptr %record, ptr %run, i64 0, i32 13
  %its_time = load i64, ptr %its_time_slot
  %is_older = icmp ult i64 %its_time, %run_time
  %new_oldest = select i1 %is_older, ptr %run, ptr %run_oldest
  %new_time = select i1 %is_older, i64 %its_time, i64 %run_time"""
_LONGEST_FREE = _search(0, FREE_LISTS, _COMPARE_TIMES, oldest="ptr null", time="i64 -1")

_OLDEST = f"""
; The warm run that was released the longest ago, of which at most `size` bytes, for the caller to
; discard; it still counts as cached.
define ptr @oldest(i64 %size) nounwind {{
entry:
  call void @lock()
{_LONGEST_FREE}
choose:
  %is_none = icmp eq ptr %oldest, null
  br i1 %is_none, label %done, label %found
found:
  call void @take(ptr %oldest, i64 %size)
  br label %done
done:
  call void @unlock()
  ret ptr %oldest
}}
"""
