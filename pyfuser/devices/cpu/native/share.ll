; What each OpenMP thread does in a parallel region: its share of a range function (threads.py).

declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @share(ptr %job) nounwind {
  %range = load ptr, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  %args = load ptr, ptr %slot
  %thread = call i32 @omp_get_thread_num()
  %threads = call i32 @omp_get_num_threads()
  %wide_thread = zext i32 %thread to i64
  %wide_threads = zext i32 %threads to i64
  call void %range(ptr %args, i64 %wide_thread, i64 %wide_threads)
  ret void
}
