; A parallel region through the interface of LLVM's libomp; `share` is in share.ll.  An ident_t
; gives the source location of the region; 2 marks it as made by a compiler.

@source = private constant [24 x i8] c";pyfuser;parallel;0;0;;\00", align 8
%ident_t = type { i32, i32, i32, i32, ptr }
@ident = private constant %ident_t { i32 0, i32 2, i32 0, i32 23, ptr @source }
declare i32 @__kmpc_global_thread_num(ptr)
declare void @__kmpc_push_num_threads(ptr, i32, i32)
declare void @__kmpc_fork_call(ptr, i32, ptr, ...)

define internal void @microtask(ptr %global_thread, ptr %bound_thread, ptr %job) nounwind {
  call void @share(ptr %job)
  ret void
}

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {
  %job = alloca [2 x ptr]
  store ptr %range, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  store ptr %args, ptr %slot
  %self = call i32 @__kmpc_global_thread_num(ptr @ident)
  call void @__kmpc_push_num_threads(ptr @ident, i32 %self, i32 %threads)
  call void (ptr, i32, ptr, ...) @__kmpc_fork_call(ptr @ident, i32 1, ptr @microtask, ptr %job)
  ret void
}
