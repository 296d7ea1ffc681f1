; The native part of the memory pool: allocates and releases blocks, from any thread.
;
; A block is a run of the pool's addresses (memory_runs.ll).  Its record begins with a
; DLManagedTensor (DLPack's C structure, which torch turns into a tensor without copying; its
; deleter is `release`) and has room for a shape and strides at its end.  `release` may run with or
; without the GIL, in any thread, even after the interpreter has exited.  Invariants:
; memory_pool.py.
;
; allocate and acquire are native functions (native_function.py); discard returns memory to the
; system.

@capsule_name = private constant [9 x i8] c"dltensor\00"

declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @posix_memalign(ptr, i64, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyCapsule_New(ptr, ptr, ptr)
declare i32 @PyCapsule_IsValid(ptr, ptr)
declare ptr @PyDict_GetItem(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@_Py_NoneStruct = external global i8
declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)
declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64)

; Takes away a run's memory; its addresses still belong to the pool.
define void @discard(ptr %record) nounwind {
  %data = load ptr, ptr %record
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %size = load i64, ptr %size_slot
  %ignored = call ptr @mmap(ptr %data, i64 %size, i32 $NO_ACCESS, i32 $MAP_FLAGS, i32 -1, i64 0)
  ret void
}

; The deleter of a big tensor: its memory stays warm, or returns to the system if the pool is full.
define void @release(ptr %record) nounwind {
  call void @lock()
  %size_slot = getelementptr %record, ptr %record, i64 0, i32 12
  %size = load i64, ptr %size_slot
  %now = call i64 @add(i64 7, i64 1)
  %time_slot = getelementptr %record, ptr %record, i64 0, i32 13
  store i64 %now, ptr %time_slot
  %limit_slot = getelementptr i64, ptr @counters, i64 1
  %limit = load i64, ptr %limit_slot
  %cached = call i64 @add(i64 3, i64 %size)
  %fits = icmp sle i64 %cached, %limit
  br i1 %fits, label %keep, label %drop
keep:
  call void @insert(ptr %record)
  call void @unlock()
  ret void
drop:
  call void @unlock()
  call void @discard(ptr %record)
  call void @put(ptr %record, i64 1)
  ret void
}

; The deleter of a small tensor: record and data are one block of malloc.
define void @release_small(ptr %record) nounwind {
  call void @free(ptr %record)
  ret void
}

; Fills the DLManagedTensor and wraps it; sizes and strides are copied after the header.
define internal ptr @capsule(ptr %record, i64 %rank, i32 %type, ptr %sizes, ptr %strides,
                             ptr %deleter) nounwind {
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
  %shape = getelementptr i8, ptr %record, i64 $HEADER_BYTES
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
}

; PyObject *acquire(self, {shape, stride, DLPack type}, 3): a capsule; None if torch should
; allocate; the bytes of a block if no warm run has room for it.
define ptr @acquire(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %sizes = alloca [$MOST_DIMENSIONS x i64]
  %strides = alloca [$MOST_DIMENSIONS x i64]
  %small_slot = alloca ptr
  %three = icmp eq i64 %count, 3
  br i1 %three, label %parse, label %bad_argument
parse:
  %shape = load ptr, ptr %arguments
  %stride_slot = getelementptr ptr, ptr %arguments, i64 1
  %stride = load ptr, ptr %stride_slot
  %rank = call i64 @PyTuple_Size(ptr %shape)
  %stride_rank = call i64 @PyTuple_Size(ptr %stride)
  %type_slot = getelementptr ptr, ptr %arguments, i64 2
  %type_object = load ptr, ptr %type_slot
  %wide_type = call i64 @PyLong_AsLongLong(ptr %type_object)
  %parse_error = call ptr @PyErr_Occurred()
  %parsed = icmp eq ptr %parse_error, null
  br i1 %parsed, label %check_rank, label %failed
check_rank:
  %same_rank = icmp eq i64 %rank, %stride_rank
  br i1 %same_rank, label %check_most, label %none
check_most:
  %rank_fits = icmp sle i64 %rank, $MOST_DIMENSIONS
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
  %product = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %last, i64 %step)
  %reach = extractvalue { i64, i1 } %product, 0
  %overflow_1 = extractvalue { i64, i1 } %product, 1
  %sum = call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %extent, i64 %reach)
  %extent_next = extractvalue { i64, i1 } %sum, 0
  %overflow_2 = extractvalue { i64, i1 } %sum, 1
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
  %scaled = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %extent, i64 %wide_element)
  %bytes = extractvalue { i64, i1 } %scaled, 0
  %overflow_3 = extractvalue { i64, i1 } %scaled, 1
  %too_big = icmp sge i64 %bytes, $MOST_BYTES
  %refuse = or i1 %overflow_3, %too_big
  br i1 %refuse, label %none, label %choose
choose:
  %is_small = icmp slt i64 %bytes, $THRESHOLD_BYTES
  br i1 %is_small, label %small, label %big

small:  ; header, shape and strides, data: one block
  %rank_bytes = shl i64 %rank, 4
  %unaligned = add i64 %rank_bytes, $HEADER_AND_63_BYTES
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

big:
  %bytes_up = add i64 %bytes, $GRANULE_LESS_1
  %block = and i64 %bytes_up, $GRANULE_MASK
  call void @lock()
  %run = call ptr @best_fit(i64 %block)
  %is_miss = icmp eq ptr %run, null
  br i1 %is_miss, label %miss, label %hit
miss:
  call void @unlock()
  %answer = call ptr @PyLong_FromLongLong(i64 %block)
  ret ptr %answer
hit:
  call void @take(ptr %run, i64 %block)
  %taken_slot = getelementptr %record, ptr %run, i64 0, i32 12
  %taken = load i64, ptr %taken_slot
  %minus = sub i64 0, %taken
  %cached = call i64 @add(i64 3, i64 %minus)
  %allocations = call i64 @add(i64 5, i64 1)
  %mapped = call i64 @add(i64 2, i64 0)
  %in_use = sub i64 %mapped, %cached
  %peak = call i64 @add(i64 4, i64 0)
  %higher = icmp sgt i64 %in_use, %peak
  %rise = sub i64 %in_use, %peak
  %new_rise = select i1 %higher, i64 %rise, i64 0
  %new_peak = call i64 @add(i64 4, i64 %new_rise)
  call void @unlock()
  %big_capsule = call ptr @capsule(ptr %run, i64 %rank, i32 %type, ptr %sizes, ptr %strides,
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
}

; PyObject *allocate(self, {shape, stride, dtype}, 3): a tensor.  `self` is a tuple: the function
; for everything except small blocks and warm runs, the function that turns a capsule into a tensor,
; and DLPack's type of each dtype.
define ptr @allocate(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %acquired = alloca [3 x ptr]
  %capsule_slot = alloca ptr
  %slow = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %three = icmp eq i64 %count, 3
  br i1 %three, label %find_type, label %ask
find_type:
  %types = call ptr @PyTuple_GetItem(ptr %self, i64 2)
  %dtype_slot = getelementptr ptr, ptr %arguments, i64 2
  %dtype = load ptr, ptr %dtype_slot
  %type = call ptr @PyDict_GetItem(ptr %types, ptr %dtype)
  %has_type = icmp ne ptr %type, null
  br i1 %has_type, label %acquire, label %ask
acquire:
  %shape = load ptr, ptr %arguments
  store ptr %shape, ptr %acquired
  %stride_slot = getelementptr ptr, ptr %arguments, i64 1
  %stride = load ptr, ptr %stride_slot
  %acquired_stride = getelementptr ptr, ptr %acquired, i64 1
  store ptr %stride, ptr %acquired_stride
  %acquired_type = getelementptr ptr, ptr %acquired, i64 2
  store ptr %type, ptr %acquired_type
  %answer = call ptr @acquire(ptr null, ptr %acquired, i64 3)
  %is_error = icmp eq ptr %answer, null
  br i1 %is_error, label %failed, label %look
look:
  %valid = call i32 @PyCapsule_IsValid(ptr %answer, ptr @capsule_name)
  %is_capsule = icmp ne i32 %valid, 0
  br i1 %is_capsule, label %wrap, label %no_room
wrap:
  %to_tensor = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  store ptr %answer, ptr %capsule_slot
  %tensor = call ptr @PyObject_Vectorcall(ptr %to_tensor, ptr %capsule_slot, i64 1, ptr null)
  call void @Py_DecRef(ptr %answer)
  ret ptr %tensor
no_room:
  call void @Py_DecRef(ptr %answer)
  br label %ask
ask:
  %given = call ptr @PyObject_Vectorcall(ptr %slow, ptr %arguments, i64 %count, ptr null)
  ret ptr %given
failed:
  ret ptr null
}
