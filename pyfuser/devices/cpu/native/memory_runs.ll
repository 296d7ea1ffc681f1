; The memory pool's runs: an allocator that splits free memory and joins it again.
;
; The pool's range of addresses is divided into runs: a block in use, free and warm (with memory),
; or free and cold (addresses without memory).  Each run has a record: room for the description of
; its tensor (memory_pool.ll), and the fields used here.  Free runs are linked in one list per state
; and size class ($FREE_LISTS classes, 8 for each power of two), and a table has their records at
; their first and last granule, so that a run finds its neighbours.  Invariant: two free runs of one
; state are never adjacent, so the only memory lost to blocks of the wrong size is the gaps between
; blocks in use.  Everything, counters included, is guarded by one spin lock; its critical sections
; take tens of nanoseconds.
;
; Callable by anyone: lock, unlock.  Callable with the lock held: add (to a counter), best_fit,
; take, insert.  Callable without it: put, carve, oldest.  A name after a dollar sign is a number of
; memory_pool.py.

; A record: DLManagedTensor; the next record in its list, the pointer to it there, size, time of
; release, 1 if cold; padding to 128 bytes.
%record = type { ptr, i32, i32, i32, i32, ptr, ptr, i64, ptr, ptr,
                  ptr, ptr, i64, i64, i64, [3 x i64] }
; lock, limit, mapped, cached, peak, allocations, misses, clock
@counters = global [8 x i64] zeroinitializer, align 64
; first the warm runs, then the cold ones
@free_lists = global [$ALL_LISTS x ptr] zeroinitializer, align 64
; the range's first address, and for each of its granules the record of the free run that begins or
; ends there; one more cell before and after
@base = global i64 0
@table = global ptr null

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i64 @llvm.ctlz.i64(i64, i1)

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

; The list for a free run of this size: its leading bit and the three bits after it.
define internal ptr @list_of(i64 %size, i64 %cold) nounwind {
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 false)
  %width = sub i64 64, %zeros
  %shift = sub i64 %width, 4
  %leading = lshr i64 %size, %shift
  %octave = mul i64 %width, 8
  %in_octave = sub i64 %leading, 8
  %class = add i64 %octave, %in_octave
  %half = mul i64 %cold, $FREE_LISTS
  %i = add i64 %half, %class
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  ret ptr %list
}

; The table's cell for the granule that begins at an address.
define internal ptr @cell(i64 %address) nounwind {
  %base = load i64, ptr @base
  %table = load ptr, ptr @table
  %offset = sub i64 %address, %base
  %granule = ashr i64 %offset, $GRANULE_BITS
  %i = add i64 %granule, 1
  %cell = getelementptr ptr, ptr %table, i64 %i
  ret ptr %cell
}

; Writes a record, or null, at the first and the last granule of a run.
define internal void @mark(ptr %record, ptr %mark) nounwind {
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
}

; Removes a free run from its list and the table.
define internal void @take_out(ptr %record) nounwind {
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
}

; Absorbs a neighbour into a run if the neighbour is free and in the same state.
define internal void @swallow(ptr %record, ptr %neighbour) nounwind {
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
}

; Frees a run: joins it with its neighbours, and adds it to the table and the front of its list.
define internal void @insert(ptr %record) nounwind {
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
}

; Takes a free run out of its list and gives back what is beyond its first `size` bytes.
define internal void @take(ptr %record, i64 %size) nounwind {
entry:
  call void @take_out(ptr %record)
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %whole = load i64, ptr %size_slot
  %is_too_big = icmp ugt i64 %whole, %size
  br i1 %is_too_big, label %describe, label %done
describe:
  %rest = call ptr @malloc(i64 $RECORD_BYTES)
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
}

; The smallest warm run of at least `size` bytes; null if there is none.
define internal ptr @best_fit(i64 %size) nounwind {
entry:
  %first_list = call ptr @list_of(i64 %size, i64 0)
  %end = getelementptr ptr, ptr @free_lists, i64 $FREE_LISTS
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
  %left = phi i64 [ $MOST_COMPARED, %open ], [ %left_next, %compare_one ]
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
}

; Frees a run, as warm or cold, that the caller holds and that already counts as cached.
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

; Finds a cold run for the caller to get memory for, such that there is then a warm run of `size`
; bytes: among those that need the least memory, thanks to a warm run before them, the smallest.  It
; extends to a multiple of `step` if there are addresses, and counts as cached.  Null: no addresses.
define ptr @carve(i64 %size, i64 %step) nounwind {
entry:
  call void @lock()
  br label %search
search:
  %i = phi i64 [ $FREE_LISTS, %entry ], [ %i_next, %searched ]
  %best = phi ptr [ null, %entry ], [ %run_best, %searched ]
  %least = phi i64 [ -1, %entry ], [ %run_least, %searched ]
  %smallest = phi i64 [ -1, %entry ], [ %run_smallest, %searched ]
  %is_end = icmp eq i64 %i, $ALL_LISTS
  br i1 %is_end, label %choose, label %open
open:
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  %head = load ptr, ptr %list
  br label %compare
compare:
  %run = phi ptr [ %head, %open ], [ %next, %compared ]
  %run_best = phi ptr [ %best, %open ], [ %new_best, %compared ]
  %run_least = phi i64 [ %least, %open ], [ %new_least, %compared ]
  %run_smallest = phi i64 [ %smallest, %open ], [ %new_smallest, %compared ]
  %is_last = icmp eq ptr %run, null
  br i1 %is_last, label %searched, label %look
look:
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
  %most = sub i64 %size, $GRANULE_BYTES
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
  %new_smallest = select i1 %is_better, i64 %run_size, i64 %run_smallest
  %next_slot = getelementptr %record, ptr %run, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  br label %compare
searched:
  %i_next = add i64 %i, 1
  br label %search
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
}

; The warm run that was released the longest ago, at most `size` bytes of it, for the caller to
; discard; it still counts as cached.
define ptr @oldest(i64 %size) nounwind {
entry:
  call void @lock()
  br label %search
search:
  %i = phi i64 [ 0, %entry ], [ %i_next, %searched ]
  %oldest = phi ptr [ null, %entry ], [ %run_oldest, %searched ]
  %time = phi i64 [ -1, %entry ], [ %run_time, %searched ]
  %is_end = icmp eq i64 %i, $FREE_LISTS
  br i1 %is_end, label %choose, label %open
open:
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  %head = load ptr, ptr %list
  br label %compare
compare:
  %run = phi ptr [ %head, %open ], [ %next, %compared ]
  %run_oldest = phi ptr [ %oldest, %open ], [ %new_oldest, %compared ]
  %run_time = phi i64 [ %time, %open ], [ %new_time, %compared ]
  %is_last = icmp eq ptr %run, null
  br i1 %is_last, label %searched, label %look
look:
  br label %compared
compared:
  %its_time_slot = getelementptr %record, ptr %run, i64 0, i32 13
  %its_time = load i64, ptr %its_time_slot
  %is_older = icmp ult i64 %its_time, %run_time
  %new_oldest = select i1 %is_older, ptr %run, ptr %run_oldest
  %new_time = select i1 %is_older, i64 %its_time, i64 %run_time
  %next_slot = getelementptr %record, ptr %run, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  br label %compare
searched:
  %i_next = add i64 %i, 1
  br label %search
choose:
  %is_none = icmp eq ptr %oldest, null
  br i1 %is_none, label %done, label %found
found:
  call void @take(ptr %oldest, i64 %size)
  br label %done
done:
  call void @unlock()
  ret ptr %oldest
}
