; Runs the range functions of a kernel; called from Python, see threads.py.
;
; `launch` is a native function (native_function.py); `fork_join`, which starts the threads, is one
; of fork_join_gomp.ll, fork_join_kmpc.ll and fork_join_python.ll.

@serial_only = global i32 0  ; not 0 in a forked child
@_Py_NoneStruct = external global i8
@_Py_TrueStruct = external global i8
declare i32 @pyfuser_thread_limit()
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)

define void @pyfuser_parallel(ptr %range, ptr %args, i32 %threads) nounwind {
  %serial_only = load i32, ptr @serial_only
  %forked = icmp ne i32 %serial_only, 0
  %one = icmp sle i32 %threads, 1
  %serial = or i1 %forked, %one
  br i1 %serial, label %alone, label %together
alone:
  call void %range(ptr %args, i64 0, i64 1)
  ret void
together:
  call void @fork_join(ptr %range, ptr %args, i32 %threads)
  ret void
}

; PyObject *launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
define ptr @launch(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %empty = icmp slt i64 %count, 1
  br i1 %empty, label %wrong_count, label %begin
wrong_count:
  %ignored = call i32 @PyErr_BadArgument()
  ret ptr null
begin:
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %with_status = add i64 %count, 1
  %slots = alloca i64, i64 %with_status, align 64
  %status = getelementptr i64, ptr %slots, i64 %count
  store i64 0, ptr %status
  br label %convert

convert:  ; slots[i] = the bits of argument i
  %i = phi i64 [ 0, %begin ], [ %next, %store ]
  %argument_slot = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument_slot
  %integer = call i64 @PyLong_AsUnsignedLongLongMask(ptr %argument)
  %maybe_error = icmp eq i64 %integer, -1
  br i1 %maybe_error, label %check_integer, label %store
check_integer:
  %error = call ptr @PyErr_Occurred()
  %no_error = icmp eq ptr %error, null
  br i1 %no_error, label %store, label %try_float
try_float:
  call void @PyErr_Clear()
  %float = call double @PyFloat_AsDouble(ptr %argument)
  %bits = bitcast double %float to i64
  %float_error = call ptr @PyErr_Occurred()
  %is_float = icmp eq ptr %float_error, null
  br i1 %is_float, label %store, label %failed
failed:
  ret ptr null
store:
  %bits_to_store = phi i64 [ %integer, %convert ], [ -1, %check_integer ], [ %bits, %try_float ]
  %slot = getelementptr i64, ptr %slots, i64 %i
  store i64 %bits_to_store, ptr %slot
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %convert, label %limit

limit:  ; threads = min(most_threads, torch's number), read only if it matters
  %most = load i64, ptr %slots
  %several = icmp sgt i64 %most, 1
  br i1 %several, label %ask, label %run
ask:
  %torch_limit = call i32 @pyfuser_thread_limit()
  %wide_limit = zext i32 %torch_limit to i64
  %fewer = icmp slt i64 %most, %wide_limit
  %least = select i1 %fewer, i64 %most, i64 %wide_limit
  br label %run
run:
  %wide_threads = phi i64 [ 1, %limit ], [ %least, %ask ]
  %threads = trunc i64 %wide_threads to i32
  %args = getelementptr i64, ptr %slots, i64 1
  %saved = call ptr @PyEval_SaveThread()
  br label %phase
phase:
  %p = phi i64 [ 0, %run ], [ %next_p, %run_phase ]
  %range_slot = getelementptr ptr, ptr %table, i64 %p
  %range = load ptr, ptr %range_slot
  %last = icmp eq ptr %range, null
  br i1 %last, label %done, label %run_phase
run_phase:
  call void @pyfuser_parallel(ptr %range, ptr %args, i32 %threads)
  %next_p = add i64 %p, 1
  br label %phase
done:
  call void @PyEval_RestoreThread(ptr %saved)
  %set = load i64, ptr %status
  %refused = icmp ne i64 %set, 0
  %result = select i1 %refused, ptr @_Py_TrueStruct, ptr @_Py_NoneStruct
  call void @Py_IncRef(ptr %result)
  ret ptr %result
}
