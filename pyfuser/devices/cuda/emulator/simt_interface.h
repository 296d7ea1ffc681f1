// What kernels and simt_runtime.cpp tell each other: a launch, the place of a thread, and the
// operations of a thread that concern other threads.  Part of simt.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// Called by a failed assertion: the launch ends with its text.
extern "C" void __assertfail(
    const char* what, const char* file, unsigned line, const char* function, unsigned long width);

namespace simt {

// What simt_counters.h counts, in the layout of counters.py's ctypes structure.
struct Counts {
  uint64_t read_requests, read_sectors, write_requests, write_sectors;
  uint64_t bytes_read, bytes_written, scratch_bytes, distinct_sectors;
  uint64_t shared_requests, bank_conflicts, barriers, warp_operations, atomics;
  uint64_t divergent_branches, operations, threads, blocks;
};

// Of one buffer, in the layout of counters.py's: its bytes; the 32-byte sectors of all requests,
// those that read and those that write; those of them that aren't in the block's share of the cache;
// the sectors that are different.
struct BufferCounts {
  uint64_t bytes, sectors[2], missed[2], distinct[2];
};

// One launch, in the layout of harness.py's ctypes structure.
struct Request {
  unsigned grid[3], block[3];
  uint64_t shared_bytes;
  uint64_t seed;  // 0: threads and blocks in ascending order; else shuffled
  void** arguments;
  uint64_t buffer_count;
  const uint64_t* buffer_starts;
  const uint64_t* buffer_bytes;
  char* message;
  uint64_t message_bytes;
  // Of what failed, and of the call in the kernel that led to it, from the start of the image; 0:
  // not known.
  uint64_t* program_counters;
  Counts* counts;             // null: nothing is counted
  uint64_t scratch_count;     // of buffers, the last ones: their bytes aren't needed
  uint64_t most_blocks;       // run so many of a grid of more than twice as many, or 0: all
  uint64_t cache_sectors;     // a block's share of the second cache
  uint64_t enough_accesses;   // of memory: a sample of blocks ends when it has made so many
  BufferCounts* buffer_counts;  // of each buffer; null if nothing is counted
  uint64_t checks_order;      // not with AddressSanitizer, which doesn't tell of every access
};

using Body = void (*)(void** arguments);
int launch(Body body, const Request& request);

enum class WarpOperation : int { synchronise, shuffle, ballot };

unsigned block_barrier(int line, bool predicate);  // returns how many threads passed true
uint64_t warp_exchange(int line, WarpOperation operation, unsigned mask, uint64_t value,
                       int source);
void atomic_access(void* address, uint64_t bytes);
void fence();
void* dynamic_shared_memory();
unsigned lane();

}  // namespace simt
