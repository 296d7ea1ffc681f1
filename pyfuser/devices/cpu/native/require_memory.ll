; `require_memory` of tensor_memory.py: see storage_check.py.  A native function; `self` is the
; Python function, and both take `Needs`. $TYPE_PLACE and $TENSOR_PLACE are the offsets in bytes of
; the type and the at::Tensor in a tensor's object, $KEYS_PLACE is that of the dispatch keys in what
; the at::Tensor points at; $UNUSUAL_KEYS are those that a plain tensor doesn't have.

@torch_tensor = external global i8
@torch_parameter = external global i8
@_Py_FalseStruct = external global i8
declare i32 @aoti_torch_get_storage_size(ptr, ptr)
declare i32 @aoti_torch_get_storage_offset(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)

define ptr @require_memory(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %size_slot = alloca i64
  %offset_slot = alloca i64
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i3, %measure ]
  %i1 = add i64 %i, 1
  %i2 = add i64 %i, 2
  %i3 = add i64 %i, 3
  %is_last = icmp sgt i64 %i3, %count
  br i1 %is_last, label %answer, label %look
look:
  %object_slot = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object_slot
  %type_slot = getelementptr i8, ptr %object, i64 $TYPE_PLACE
  %type = load ptr, ptr %type_slot
  %is_tensor = icmp eq ptr %type, @torch_tensor
  %is_parameter = icmp eq ptr %type, @torch_parameter
  %is_known = or i1 %is_tensor, %is_parameter
  br i1 %is_known, label %classify, label %suspect
classify:
  %tensor = getelementptr i8, ptr %object, i64 $TENSOR_PLACE
  %implementation = load ptr, ptr %tensor
  %keys_slot = getelementptr i8, ptr %implementation, i64 $KEYS_PLACE
  %keys = load i64, ptr %keys_slot
  %unusual = and i64 %keys, $UNUSUAL_KEYS
  %is_plain = icmp eq i64 %unusual, 0
  br i1 %is_plain, label %ask, label %suspect
ask:
  %no_size = call i32 @aoti_torch_get_storage_size(ptr %tensor, ptr %size_slot)
  %no_offset = call i32 @aoti_torch_get_storage_offset(ptr %tensor, ptr %offset_slot)
  %errors = or i32 %no_size, %no_offset
  %is_error = icmp ne i32 %errors, 0
  br i1 %is_error, label %suspect, label %measure
measure:  ; the bytes from the first element to the end of the storage, against those needed
  %needed_slot = getelementptr ptr, ptr %arguments, i64 %i1
  %needed_object = load ptr, ptr %needed_slot
  %needed = call i64 @PyLong_AsLongLong(ptr %needed_object)
  %each_slot = getelementptr ptr, ptr %arguments, i64 %i2
  %each_object = load ptr, ptr %each_slot
  %each = call i64 @PyLong_AsLongLong(ptr %each_object)
  %size = load i64, ptr %size_slot
  %offset = load i64, ptr %offset_slot
  %before = mul i64 %offset, %each
  %there = sub i64 %size, %before
  %is_short = icmp slt i64 %there, %needed
  br i1 %is_short, label %suspect, label %next
answer:
  call void @Py_IncRef(ptr @_Py_FalseStruct)
  ret ptr @_Py_FalseStruct
suspect:
  %verdict = call ptr @PyObject_Vectorcall(ptr %self, ptr %arguments, i64 %count, ptr null)
  ret ptr %verdict
}
