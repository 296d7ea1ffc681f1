"""The native part of the memory pool, as LLVM IR text: take a block, give it back, from any thread.

A block is described by a *record*: a DLManagedTensor (DLPack's C structure, which torch turns
into a tensor without copying; its deleter is `release`), then the pool's own fields, then room
for a shape and strides. Free blocks hang in one list per size class, the last one released
first. One spin lock guards the lists and the counters: its sections take tens of nanoseconds,
and `release` may run with or without the GIL, in any thread, after the interpreter has gone.
Invariants: memory_pool.py.
"""

from __future__ import annotations

# From here on the pool wins: the median of allocate, fill, free in us, pool against torch.empty,
# was 2.8 / 3.0 at 64 KiB, 4.3 / 4.7 at 256 KiB, 8.3 / 10.2 at 1 MiB, 96 / 273 at 16 MiB, and
# 8.0 / 20.8 ms at 64 MiB.  Below it malloc keeps its memory warm, and shares it with all others.
THRESHOLD_BYTES = 256 << 10
HUGE_PAGE_BYTES = 2 << 20
# 8 classes for each power of two up to 2**47 bytes, the address space of x86-64 and AArch64.
TOP_CLASS_BITS = 47
FREE_LISTS = 8 * (TOP_CLASS_BITS + 1)
_MOST_DIMENSIONS = 32
_HEADER_BYTES = 128
RECORD_BYTES = _HEADER_BYTES + 16 * _MOST_DIMENSIONS


def pool_text() -> str:
    """The module: `acquire` (a native function), `release`, `take_all`, `put_back`, `destroy`."""
    return _DECLARATIONS + _LOCK + _RELEASE + _MAINTENANCE + _DESCRIBE + _ACQUIRE


_DECLARATIONS = f"""
; A record: DLManagedTensor, then next, size, time of release, free list, padding to 128 bytes.
%record = type {{ ptr, i32, i32, i32, i32, ptr, ptr, i64, ptr, ptr, ptr, i64, i64, ptr, [4 x i64] }}
; lock, limit, mapped, cached, peak, hits, misses, clock
@counters = global [8 x i64] zeroinitializer, align 64
@free_lists = global [{FREE_LISTS} x ptr] zeroinitializer, align 64
@capsule_name = private constant [9 x i8] c"dltensor\\00"

declare i32 @munmap(ptr, i64)
declare void @free(ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare i32 @sched_yield()
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyCapsule_New(ptr, ptr, ptr)
declare void @Py_IncRef(ptr)
@_Py_NoneStruct = external global i8
declare {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64, i64)
declare {{ i64, i1 }} @llvm.sadd.with.overflow.i64(i64, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
"""

_LOCK = """
define internal void @lock() nounwind {
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

define internal void @unlock() nounwind {
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

_RELEASE = """
define internal void @push(ptr %record) nounwind {
  %home_slot = getelementptr %record, ptr %record, i64 0, i32 13
  %home = load ptr, ptr %home_slot
  %head = load ptr, ptr %home
  %next_slot = getelementptr %record, ptr %record, i64 0, i32 10
  store ptr %head, ptr %next_slot
  store ptr %record, ptr %home
  ret void
}

define internal void @unmap(ptr %record) nounwind {
  %data = load ptr, ptr %record
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 11
  %size = load i64, ptr %size_slot
  %ignored = call i32 @munmap(ptr %data, i64 %size)
  call void @free(ptr %record)
  ret void
}

; The deleter of a big tensor: into its free list, or to the system if the pool is full.
define void @release(ptr %record) nounwind {
  call void @lock()
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 11
  %size = load i64, ptr %size_slot
  %now = call i64 @add(i64 7, i64 1)
  %released_slot = getelementptr %record, ptr %record, i64 0, i32 12
  store i64 %now, ptr %released_slot
  %limit_slot = getelementptr i64, ptr @counters, i64 1
  %limit = load i64, ptr %limit_slot
  %cached = call i64 @add(i64 3, i64 %size)
  %fits = icmp sle i64 %cached, %limit
  br i1 %fits, label %keep, label %drop
keep:
  call void @push(ptr %record)
  call void @unlock()
  ret void
drop:
  %minus = sub i64 0, %size
  %cached_again = call i64 @add(i64 3, i64 %minus)
  %mapped = call i64 @add(i64 2, i64 %minus)
  call void @unlock()
  call void @unmap(ptr %record)
  ret void
}

; The deleter of a small tensor: record and data are one block of malloc's.
define void @release_small(ptr %record) nounwind {
  call void @free(ptr %record)
  ret void
}
"""

_MAINTENANCE = f"""
; All free records as one list; they still count as cached.
define ptr @take_all() nounwind {{
entry:
  call void @lock()
  br label %next_list
next_list:
  %i = phi i64 [ 0, %entry ], [ %i_next, %list_done ]
  %all = phi ptr [ null, %entry ], [ %tail, %list_done ]
  %done = icmp eq i64 %i, {FREE_LISTS}
  br i1 %done, label %finish, label %take
take:
  %list = getelementptr ptr, ptr @free_lists, i64 %i
  %first = load ptr, ptr %list
  store ptr null, ptr %list
  br label %move
move:
  %record = phi ptr [ %first, %take ], [ %record_next, %move_one ]
  %tail = phi ptr [ %all, %take ], [ %record, %move_one ]
  %list_end = icmp eq ptr %record, null
  br i1 %list_end, label %list_done, label %move_one
move_one:
  %next_slot = getelementptr %record, ptr %record, i64 0, i32 10
  %record_next = load ptr, ptr %next_slot
  store ptr %tail, ptr %next_slot
  br label %move
list_done:
  %i_next = add i64 %i, 1
  br label %next_list
finish:
  call void @unlock()
  ret ptr %all
}}

define void @put_back(ptr %record) nounwind {{
  call void @lock()
  call void @push(ptr %record)
  call void @unlock()
  ret void
}}

; Unmaps a record that take_all has handed out.
define void @destroy(ptr %record) nounwind {{
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 11
  %size = load i64, ptr %size_slot
  %minus = sub i64 0, %size
  call void @lock()
  %cached = call i64 @add(i64 3, i64 %minus)
  %mapped = call i64 @add(i64 2, i64 %minus)
  call void @unlock()
  call void @unmap(ptr %record)
  ret void
}}
"""

_DESCRIBE = f"""
; Fills the DLManagedTensor and wraps it; sizes and strides are copied behind the header.
define internal ptr @capsule(ptr %record, i64 %rank, i32 %type, ptr %sizes, ptr %strides,
                             ptr %deleter) nounwind {{
entry:
  %device = getelementptr %record, ptr %record, i64 0, i32 1
  store i32 1, ptr %device
  %device_index = getelementptr %record, ptr %record, i64 0, i32 2
  store i32 0, ptr %device_index
  %rank_slot = getelementptr %record, ptr %record, i64 0, i32 3
  %short_rank = trunc i64 %rank to i32
  store i32 %short_rank, ptr %rank_slot
  %type_slot = getelementptr %record, ptr %record, i64 0, i32 4
  store i32 %type, ptr %type_slot
  %shape = getelementptr i8, ptr %record, i64 {_HEADER_BYTES}
  %steps = getelementptr i64, ptr %shape, i64 %rank
  %shape_slot = getelementptr %record, ptr %record, i64 0, i32 5
  store ptr %shape, ptr %shape_slot
  %steps_slot = getelementptr %record, ptr %record, i64 0, i32 6
  store ptr %steps, ptr %steps_slot
  %offset_slot = getelementptr %record, ptr %record, i64 0, i32 7
  store i64 0, ptr %offset_slot
  %context_slot = getelementptr %record, ptr %record, i64 0, i32 8
  store ptr null, ptr %context_slot
  %deleter_slot = getelementptr %record, ptr %record, i64 0, i32 9
  store ptr %deleter, ptr %deleter_slot
  br label %copy
copy:
  %i = phi i64 [ 0, %entry ], [ %i_next, %copy_one ]
  %more = icmp slt i64 %i, %rank
  br i1 %more, label %copy_one, label %done
copy_one:
  %size_from = getelementptr i64, ptr %sizes, i64 %i
  %size = load i64, ptr %size_from
  %size_to = getelementptr i64, ptr %shape, i64 %i
  store i64 %size, ptr %size_to
  %step_from = getelementptr i64, ptr %strides, i64 %i
  %step = load i64, ptr %step_from
  %step_to = getelementptr i64, ptr %steps, i64 %i
  store i64 %step, ptr %step_to
  %i_next = add i64 %i, 1
  br label %copy
done:
  %result = call ptr @PyCapsule_New(ptr %record, ptr @capsule_name, ptr null)
  ret ptr %result
}}
"""

_ACQUIRE = f"""
; PyObject *acquire(self, {{shape, stride, DLPack type, address of a new record or 0}}, 4):
; a capsule; None for what torch should allocate; the bytes to map if there is no free block.
define ptr @acquire(ptr %self, ptr %arguments, i64 %count) nounwind {{
entry:
  %sizes = alloca [{_MOST_DIMENSIONS} x i64]
  %strides = alloca [{_MOST_DIMENSIONS} x i64]
  %small_slot = alloca ptr
  %four = icmp eq i64 %count, 4
  br i1 %four, label %parse, label %bad_argument
parse:
  %shape = load ptr, ptr %arguments
  %stride_slot = getelementptr ptr, ptr %arguments, i64 1
  %stride = load ptr, ptr %stride_slot
  %rank = call i64 @PyTuple_Size(ptr %shape)
  %stride_rank = call i64 @PyTuple_Size(ptr %stride)
  %type_slot = getelementptr ptr, ptr %arguments, i64 2
  %type_object = load ptr, ptr %type_slot
  %wide_type = call i64 @PyLong_AsLongLong(ptr %type_object)
  %new_slot = getelementptr ptr, ptr %arguments, i64 3
  %new_object = load ptr, ptr %new_slot
  %new = call i64 @PyLong_AsLongLong(ptr %new_object)
  %parse_error = call ptr @PyErr_Occurred()
  %parsed = icmp eq ptr %parse_error, null
  br i1 %parsed, label %check_rank, label %failed
check_rank:
  %same_rank = icmp eq i64 %rank, %stride_rank
  br i1 %same_rank, label %check_most, label %none
check_most:
  %rank_fits = icmp sle i64 %rank, {_MOST_DIMENSIONS}
  br i1 %rank_fits, label %dimension, label %none

dimension:  ; extent = 1 + sum of (size - 1) * stride
  %i = phi i64 [ 0, %check_most ], [ %i_next, %next_dimension ]
  %extent = phi i64 [ 1, %check_most ], [ %extent_next, %next_dimension ]
  %more = icmp slt i64 %i, %rank
  br i1 %more, label %convert, label %measured
convert:
  %size_object = call ptr @PyTuple_GetItem(ptr %shape, i64 %i)
  %size = call i64 @PyLong_AsLongLong(ptr %size_object)
  %step_object = call ptr @PyTuple_GetItem(ptr %stride, i64 %i)
  %step = call i64 @PyLong_AsLongLong(ptr %step_object)
  %size_slot = getelementptr i64, ptr %sizes, i64 %i
  store i64 %size, ptr %size_slot
  %step_slot = getelementptr i64, ptr %strides, i64 %i
  store i64 %step, ptr %step_slot
  %has_elements = icmp sgt i64 %size, 0
  %forwards = icmp sge i64 %step, 0
  %usual = and i1 %has_elements, %forwards
  br i1 %usual, label %accumulate, label %unusual
unusual:
  %number_error = call ptr @PyErr_Occurred()
  %no_error = icmp eq ptr %number_error, null
  br i1 %no_error, label %none, label %failed
accumulate:
  %last = sub i64 %size, 1
  %product = call {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64 %last, i64 %step)
  %reach = extractvalue {{ i64, i1 }} %product, 0
  %overflow_1 = extractvalue {{ i64, i1 }} %product, 1
  %sum = call {{ i64, i1 }} @llvm.sadd.with.overflow.i64(i64 %extent, i64 %reach)
  %extent_next = extractvalue {{ i64, i1 }} %sum, 0
  %overflow_2 = extractvalue {{ i64, i1 }} %sum, 1
  %overflow = or i1 %overflow_1, %overflow_2
  br i1 %overflow, label %none, label %next_dimension
next_dimension:
  %i_next = add i64 %i, 1
  br label %dimension

measured:
  %type = trunc i64 %wide_type to i32
  %shifted = lshr i32 %type, 8
  %bits = and i32 %shifted, 255
  %element = lshr i32 %bits, 3
  %wide_element = zext i32 %element to i64
  %scaled = call {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64 %extent, i64 %wide_element)
  %bytes = extractvalue {{ i64, i1 }} %scaled, 0
  %overflow_3 = extractvalue {{ i64, i1 }} %scaled, 1
  %too_big = icmp sge i64 %bytes, {1 << TOP_CLASS_BITS}
  %refuse = or i1 %overflow_3, %too_big
  br i1 %refuse, label %none, label %choose
choose:
  %is_new = icmp ne i64 %new, 0
  %is_small = icmp slt i64 %bytes, {THRESHOLD_BYTES}
  br i1 %is_small, label %small, label %big

small:  ; header, shape and strides, data: one block
  %rank_bytes = shl i64 %rank, 4
  %unaligned = add i64 %rank_bytes, {_HEADER_BYTES + 63}
  %data_offset = and i64 %unaligned, -64
  %small_bytes = add i64 %data_offset, %bytes
  %status = call i32 @posix_memalign(ptr %small_slot, i64 64, i64 %small_bytes)
  %allocated = icmp eq i32 %status, 0
  br i1 %allocated, label %small_ready, label %none
small_ready:
  %small_record = load ptr, ptr %small_slot
  %small_data = getelementptr i8, ptr %small_record, i64 %data_offset
  store ptr %small_data, ptr %small_record
  %small_capsule = call ptr @capsule(ptr %small_record, i64 %rank, i32 %type, ptr %sizes,
                                     ptr %strides, ptr @release_small)
  ret ptr %small_capsule

big:  ; class: the leading bit and the three bits behind it, of bytes - 1
  %bytes_1 = sub i64 %bytes, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %bytes_1, i1 false)
  %width = sub i64 64, %zeros
  %shift = sub i64 %width, 4
  %leading = lshr i64 %bytes_1, %shift
  %rounded_up = add i64 %leading, 1
  %class_bytes = shl i64 %rounded_up, %shift
  %octave = mul i64 %width, 8
  %in_octave = sub i64 %leading, 8
  %class = add i64 %octave, %in_octave
  %home = getelementptr ptr, ptr @free_lists, i64 %class
  call void @lock()
  br i1 %is_new, label %adopt, label %pop
adopt:
  %new_record = inttoptr i64 %new to ptr
  %home_slot = getelementptr %record, ptr %new_record, i64 0, i32 13
  store ptr %home, ptr %home_slot
  %mapped_now = call i64 @add(i64 2, i64 %class_bytes)
  %misses = call i64 @add(i64 6, i64 1)
  br label %hand_out
pop:
  %head = load ptr, ptr %home
  %empty = icmp eq ptr %head, null
  br i1 %empty, label %miss, label %hit
miss:
  call void @unlock()
  %answer = call ptr @PyLong_FromLongLong(i64 %class_bytes)
  ret ptr %answer
hit:
  %next_slot = getelementptr %record, ptr %head, i64 0, i32 10
  %next = load ptr, ptr %next_slot
  store ptr %next, ptr %home
  %minus = sub i64 0, %class_bytes
  %cached_now = call i64 @add(i64 3, i64 %minus)
  %hits = call i64 @add(i64 5, i64 1)
  br label %hand_out
hand_out:
  %big_record = phi ptr [ %new_record, %adopt ], [ %head, %hit ]
  %mapped = call i64 @add(i64 2, i64 0)
  %cached = call i64 @add(i64 3, i64 0)
  %in_use = sub i64 %mapped, %cached
  %peak = call i64 @add(i64 4, i64 0)
  %higher = icmp sgt i64 %in_use, %peak
  %rise = sub i64 %in_use, %peak
  %new_rise = select i1 %higher, i64 %rise, i64 0
  %new_peak = call i64 @add(i64 4, i64 %new_rise)
  call void @unlock()
  %big_capsule = call ptr @capsule(ptr %big_record, i64 %rank, i32 %type, ptr %sizes, ptr %strides,
                                   ptr @release)
  ret ptr %big_capsule

none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
bad_argument:
  %ignored = call i32 @PyErr_BadArgument()
  br label %failed
failed:
  ret ptr null
}}
"""
