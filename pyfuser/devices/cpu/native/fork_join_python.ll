; A parallel region on Python's threads, used if no OpenMP runtime is found.

declare void @pyfuser_python_parallel(ptr, ptr, i32)

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {
  call void @pyfuser_python_parallel(ptr %range, ptr %args, i32 %threads)
  ret void
}
