; A parallel region through libgomp's interface; `share` is in share.ll.

declare void @GOMP_parallel(ptr, ptr, i32, i32)

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {
  %job = alloca [2 x ptr]
  store ptr %range, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  store ptr %args, ptr %slot
  call void @GOMP_parallel(ptr @share, ptr %job, i32 %threads, i32 0)
  ret void
}
