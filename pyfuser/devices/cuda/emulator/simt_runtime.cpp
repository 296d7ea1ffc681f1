// Simulates the threads of a CUDA launch on one CPU thread, and checks what they do.  Each CUDA
// thread is a fiber that runs until it waits at a barrier, one block at a time, in an order drawn
// from a seed.  Kernel objects are compiled with -fsanitize=thread and -fsanitize=bounds,... but
// linked with the handlers below instead of the sanitizers' own runtimes, so that every load and
// store of a kernel calls check_access.  An access outside every buffer, or a race in shared memory
// (two threads, one of them writing, no barrier between them), ends the launch with a message
// before the access is made; simt_counters.h counts the others.  This file itself is compiled
// without instrumentation.
#include "simt.h"
#include "simt_counters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <unordered_map>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
// From the linker: the addresses of this shared object and its shared-memory section.
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
extern char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
// From operations.py: the address of a basic block, its number of operations, whether a GPU's
// compiler would predicate it; then those of the next block.
extern uint64_t __start_simt_blocks[] __attribute__((weak, visibility("hidden")));
extern uint64_t __stop_simt_blocks[] __attribute__((weak, visibility("hidden")));
}

namespace simt {
namespace {

enum class State { ready, at_barrier, at_warp, left };
constexpr size_t stack_bytes = 128 * 1024;
constexpr unsigned nobody = 0xffffffffu;
constexpr unsigned most_accesses = 1u << 25;  // of a thread between barriers: with more, it spins

struct Fiber {
  jmp_buf context;
  ucontext_t first_context;
  bool started;
  State state;
  uint3 thread;
  unsigned index;
  int line;  // of the barrier or warp operation it waits at
  bool predicate;
  unsigned answer;
  WarpOperation operation;
  unsigned mask;
  int source;
  uint64_t value, result;
};

// The last accesses to a byte of shared memory, and their barrier intervals of block and warp.
struct Touch {
  unsigned thread = nobody;
  unsigned interval = 0;
  unsigned warp_interval = 0;
};
struct Cell {
  Touch write, read, other_read;
  bool atomic = false;
};

struct Shared {
  Region region;
  std::vector<Cell> cells;  // per byte
};

struct Launch {
  const Request* request;
  Body body;
  bool failed;
  unsigned interval;  // counts block barriers over the whole launch, so no cell is ever cleared
  unsigned thread_count;
  std::vector<Fiber> fibers;
  std::vector<unsigned> warp_intervals;
  std::vector<Region> buffers;
  Region stacks, image;
  Shared static_shared, dynamic_shared;
  std::vector<char> dynamic_storage;
  std::mt19937_64 random;
  Counting counting;
};

Launch state;
Fiber* current;
unsigned accesses;  // of the current fiber since it was resumed
jmp_buf scheduler;

void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Keeps only the first message: later failures are consequences of it.
void report(const char* format, ...) {
  if (state.failed) return;
  state.failed = true;
  char* out = state.request->message;
  size_t room = state.request->message_bytes;
  int used = snprintf(out, room, "block (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z);
  if (current) {
    used += snprintf(out + used, room - used, " thread (%u, %u, %u)", current->thread.x,
                     current->thread.y, current->thread.z);
  }
  used += snprintf(out + used, room - used, ": ");
  va_list values;
  va_start(values, format);
  vsnprintf(out + used, room - used, format, values);
  va_end(values);
}

// ---------------------------------------------------------------- fibers

void to_scheduler() {
  if (_setjmp(current->context) == 0) _longjmp(scheduler, 1);
  asm volatile("" ::: "memory");
}

[[noreturn]] void abandon() { _longjmp(scheduler, 1); }

void fiber_main() {
  for (;;) {
    state.body(state.request->arguments);
    current->state = State::left;
    to_scheduler();
  }
}

void resume(Fiber& fiber) {
  current = &fiber;
  accesses = 0;
  threadIdx = fiber.thread;
  if (_setjmp(scheduler) == 0) {
    if (fiber.started) _longjmp(fiber.context, 1);
    fiber.started = true;
    setcontext(&fiber.first_context);
  }
  current = nullptr;
}

bool make_fibers() {
  const unsigned* block = state.request->block;
  state.thread_count = block[0] * block[1] * block[2];
  state.fibers = std::vector<Fiber>(state.thread_count);
  state.warp_intervals.assign((state.thread_count + 31) / 32, 0);
  state.stacks.bytes = state.thread_count * stack_bytes;
  void* memory = mmap(nullptr, state.stacks.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  state.stacks.start = static_cast<char*>(memory);
  for (unsigned i = 0; i < state.thread_count; ++i) {
    Fiber& fiber = state.fibers[i];
    fiber.index = i;
    fiber.thread = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    getcontext(&fiber.first_context);
    fiber.first_context.uc_stack.ss_sp = state.stacks.start + i * stack_bytes;
    fiber.first_context.uc_stack.ss_size = stack_bytes;
    fiber.first_context.uc_link = nullptr;
    makecontext(&fiber.first_context, fiber_main, 0);
  }
  return true;
}

// ---------------------------------------------------------------- the scheduler of one block

// Releases the threads of a warp that wait together; false if some can't arrive any more.
bool release_warp(unsigned warp) {
  unsigned first = warp * 32, count = std::min(32u, state.thread_count - first);
  Fiber* lanes = &state.fibers[first];
  for (unsigned leader = 0; leader < count; ++leader) {
    if (lanes[leader].state != State::at_warp) continue;
    const Fiber& model = lanes[leader];
    unsigned mask = model.mask, ballot = 0;
    bool complete = true;
    for (unsigned i = 0; i < 32; ++i) {
      if (!(mask >> i & 1)) continue;
      if (i >= count || lanes[i].state == State::left) {
        report("line %d: the mask 0x%08x names lane %u of warp %u, which %s", model.line, mask, i,
               warp, i >= count ? "is not in the block" : "has left the kernel");
        return false;
      }
      const Fiber& lane = lanes[i];
      complete &= lane.state == State::at_warp && lane.mask == mask && lane.line == model.line &&
                  lane.operation == model.operation;
      ballot |= unsigned(lane.value != 0) << i;
    }
    if (!complete) continue;
    for (unsigned i = 0; i < count; ++i) {
      if (!(mask >> i & 1)) continue;
      int source = lanes[i].source;
      bool taken = source >= 0 && source < 32 && (mask >> source & 1);
      // A lane that doesn't take part has no defined value: use a conspicuous one.
      lanes[i].result = model.operation == WarpOperation::ballot ? ballot
                        : taken                                   ? lanes[source].value
                                                                  : ~uint64_t(0);
    }
    // Only after every result is read: the lanes' values stay as deposited until they run.
    for (unsigned i = 0; i < count; ++i) {
      if (mask >> i & 1) lanes[i].state = State::ready;
    }
    state.warp_intervals[warp] += 1;
    if (state.counting.wanted()) state.counting.warp_operation();
  }
  return true;
}

// All remaining threads wait: legal only if all of the block wait at one __syncthreads.
bool release_block() {
  const Fiber* waiting = nullptr;
  const Fiber* missing = nullptr;
  unsigned passed = 0;
  for (const Fiber& fiber : state.fibers) {
    if (fiber.state == State::at_barrier) {
      if (waiting && waiting->line != fiber.line) missing = &fiber;
      if (!waiting) waiting = &fiber;
      passed += fiber.predicate;
    } else {
      missing = &fiber;
    }
  }
  if (!waiting || missing) {
    const Fiber& stuck = waiting ? *waiting : *missing;
    const Fiber* other = missing;
    for (const Fiber& fiber : state.fibers) {
      if (!waiting && fiber.state == State::left) other = &fiber;
    }
    const char* what = other->state == State::left ? "has left the kernel"
                       : other->state == State::at_warp ? "waits at a warp operation"
                                                        : "waits at another barrier";
    report("barrier divergence: thread (%u, %u, %u) waits at line %d, but thread (%u, %u, %u) %s "
           "(line %d)", stuck.thread.x, stuck.thread.y, stuck.thread.z, stuck.line,
           other->thread.x, other->thread.y, other->thread.z, what, other->line);
    return false;
  }
  for (Fiber& fiber : state.fibers) {
    fiber.state = State::ready;
    fiber.answer = passed;
  }
  state.interval += 1;
  if (state.counting.wanted()) state.counting.barrier();
  return true;
}

void run_block(std::vector<unsigned>& order) {
  state.interval += 1;
  const Region& fixed = state.static_shared.region;
  if (fixed.bytes) memset(fixed.start, 0xff, fixed.bytes);
  std::fill(state.dynamic_storage.begin(), state.dynamic_storage.end(), char(0xff));
  for (Fiber& fiber : state.fibers) fiber.state = State::ready;
  while (!state.failed) {
    if (state.request->seed) std::shuffle(order.begin(), order.end(), state.random);
    for (unsigned i : order) {
      if (state.fibers[i].state != State::ready) continue;
      resume(state.fibers[i]);
      if (state.failed) return;
    }
    for (unsigned warp = 0; warp < state.warp_intervals.size(); ++warp) {
      if (!release_warp(warp)) return;
    }
    bool all_left = true, ready = false;
    for (const Fiber& fiber : state.fibers) {
      all_left &= fiber.state == State::left;
      ready |= fiber.state == State::ready;
    }
    if (all_left) return;
    if (!ready && !release_block()) return;
  }
}

void run_grid() {
  const unsigned* grid = state.request->grid;
  std::vector<uint64_t> blocks(uint64_t(grid[0]) * grid[1] * grid[2]);
  for (uint64_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  if (state.request->seed) std::shuffle(blocks.begin(), blocks.end(), state.random);
  std::vector<unsigned> order(state.thread_count);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  for (uint64_t i : blocks) {
    blockIdx = {unsigned(i % grid[0]), unsigned(i / grid[0] % grid[1]),
                unsigned(i / grid[0] / grid[1])};
    if (state.counting.wanted()) state.counting.begin_block(state.thread_count);
    run_block(order);
    if (state.failed) return;
    if (state.counting.wanted()) state.counting.end_block();
  }
  if (state.counting.wanted()) state.counting.end();
}

// ---------------------------------------------------------------- checks of memory accesses

enum class Access { read, write, atomic };

bool ordered(const Touch& before, unsigned thread) {
  if (before.thread == nobody || before.thread == thread) return true;
  if (before.interval != state.interval) return true;
  const unsigned warp = thread / 32;
  return before.thread / 32 == warp && before.warp_interval < state.warp_intervals[warp];
}

// Returns the thread that races with this access of one byte, or `nobody`, and notes the access.
unsigned note(Cell& cell, Access access) {
  unsigned thread = current->index;
  Touch now{thread, state.interval, state.warp_intervals[thread / 32]};
  bool both_atomic = access == Access::atomic && cell.atomic;
  if (!both_atomic && !ordered(cell.write, thread)) return cell.write.thread;
  if (access == Access::read) {
    // Two readers of an interval, from different threads, are kept: one of them isn't the writer.
    if (cell.read.thread != thread && cell.read.interval == state.interval) {
      cell.other_read = cell.read;
    }
    cell.read = now;
    return nobody;
  }
  if (!ordered(cell.read, thread)) return cell.read.thread;
  if (!ordered(cell.other_read, thread)) return cell.other_read.thread;
  cell.write = now;
  cell.atomic = access == Access::atomic;
  return nobody;
}

const char* verb(Access access) {
  return access == Access::read ? "reads" : access == Access::write ? "writes" : "updates";
}

[[noreturn]] void fail_at(void* counter) {
  *state.request->program_counter = uint64_t(static_cast<char*>(counter) - __ehdr_start);
  abandon();
}

void check_race(std::vector<Cell>& cells, uint64_t offset, uint64_t bytes, Access access,
                void* counter) {
  for (uint64_t i = 0; i < bytes; ++i) {
    unsigned other = note(cells[offset + i], access);
    if (other == nobody) continue;
    const uint3& thread = state.fibers[other].thread;
    report("race in shared memory: %s byte %lu, which thread (%u, %u, %u) touched with no barrier "
           "between them",
           verb(access), (unsigned long)(offset + i), thread.x, thread.y, thread.z);
    fail_at(counter);
  }
}

[[noreturn]] void fail_outside(const char* address, uint64_t bytes, Access access, void* counter) {
  unsigned long nearest = 0;
  long distance = 0;
  for (unsigned long i = 0; i < state.buffers.size(); ++i) {
    long off = address - state.buffers[i].start;
    if (off >= 0) off += long(bytes) - long(state.buffers[i].bytes);
    if (i == 0 || labs(off) < labs(distance)) {
      nearest = i;
      distance = off;
    }
  }
  const char* side = distance < 0 ? "before" : "past the end of";
  report("%s %lu bytes outside of every buffer (%ld bytes %s buffer %lu)", verb(access),
         (unsigned long)bytes, labs(distance), side, nearest);
  fail_at(counter);
}

void check_access(void* pointer, uint64_t bytes, Access access, void* counter) {
  if (!current) return;
  if (++accesses > most_accesses) {
    report("spins: %u accesses of memory with no barrier", most_accesses);
    fail_at(counter);
  }
  const char* address = static_cast<const char*>(pointer);
  if (state.stacks.holds(address, bytes)) return;
  const bool is_counted = state.counting.wanted() && access != Access::atomic;
  if (state.counting.wanted() && access == Access::atomic) state.counting.atomic();
  for (Shared* shared : {&state.static_shared, &state.dynamic_shared}) {
    if (!shared->region.holds(address, bytes)) continue;
    uint64_t offset = uint64_t(address - shared->region.start);
    if (is_counted) state.counting.shared_access(current->index, counter, offset, bytes);
    return check_race(shared->cells, offset, bytes, access, counter);
  }
  for (size_t i = 0; i < state.buffers.size(); ++i) {
    if (!state.buffers[i].holds(address, bytes)) continue;
    if (is_counted) {
      state.counting.global_access(current->index, counter, i, address, bytes,
                                   access == Access::write);
    }
    return;
  }
  if (state.image.holds(address, bytes)) return;
  fail_outside(address, bytes, access, counter);
}

void set_regions() {
  const Request& request = *state.request;
  state.image = {__ehdr_start, uint64_t(_end - __ehdr_start)};
  uint64_t fixed_bytes = uint64_t(__stop_simt_shared - __start_simt_shared);
  state.static_shared = {{__start_simt_shared, fixed_bytes}, std::vector<Cell>(fixed_bytes)};
  constexpr uint64_t alignment = 128;
  state.dynamic_storage.assign(request.shared_bytes + alignment, 0);
  uint64_t start = (uint64_t(state.dynamic_storage.data()) + alignment - 1) / alignment * alignment;
  state.dynamic_shared = {{reinterpret_cast<char*>(start), request.shared_bytes},
                          std::vector<Cell>(request.shared_bytes)};
  for (uint64_t i = 0; i < request.buffer_count; ++i) {
    state.buffers.push_back(
        {reinterpret_cast<char*>(request.buffer_starts[i]), request.buffer_bytes[i]});
  }
  state.counting.begin(request, state.buffers, state.thread_count);
}

}  // namespace

// ---------------------------------------------------------------- functions called by simt.h

int launch(Body body, const Request& request) {
  state = Launch();
  state.request = &request;
  state.body = body;
  state.random.seed(request.seed);
  current = nullptr;
  blockDim = {request.block[0], request.block[1], request.block[2]};
  gridDim = {request.grid[0], request.grid[1], request.grid[2]};
  if (!make_fibers()) {
    report("no memory for the threads' stacks");
    return 1;
  }
  set_regions();
  run_grid();
  munmap(state.stacks.start, state.stacks.bytes);
  return state.failed;
}

unsigned block_barrier(int line, bool predicate) {
  current->line = line;
  current->predicate = predicate;
  current->state = State::at_barrier;
  to_scheduler();
  return current->answer;
}

uint64_t warp_exchange(int line, WarpOperation operation, unsigned mask, uint64_t value,
                       int source) {
  if (!(mask >> (current->index % 32) & 1)) {
    report("line %d: the mask 0x%08x leaves out the calling lane", line, mask);
    abandon();
  }
  current->line = line;
  current->operation = operation;
  current->mask = mask;
  current->value = value;
  current->source = source;
  current->state = State::at_warp;
  to_scheduler();
  return current->result;
}

__attribute__((noinline)) void atomic_access(void* address, uint64_t bytes) {
  check_access(address, bytes, Access::atomic, __builtin_return_address(0));
}

void enter_function(void* caller) {
  if (current && state.counting.wanted()) state.counting.enter(current->index, caller);
}

void leave_function() {
  if (current && state.counting.wanted()) state.counting.leave(current->index);
}

const std::unordered_map<uint64_t, BasicBlock>& basic_blocks() {
  static const auto found = [] {
    std::unordered_map<uint64_t, BasicBlock> table;
    for (uint64_t* at = __start_simt_blocks; at < __stop_simt_blocks; at += 3) {
      table[at[0]] = {at[1], at[2] != 0};
    }
    return table;
  }();
  return found;
}

void enter_basic_block(void* site) {
  if (!current || !state.counting.wanted()) return;
  auto found = basic_blocks().find(uint64_t(site));
  const BasicBlock unknown = {0, false};
  state.counting.basic_block(current->index, site,
                             found == basic_blocks().end() ? unknown : found->second);
}

void* dynamic_shared_memory() { return state.dynamic_shared.region.start; }

unsigned lane() { return current->index % 32; }

}  // namespace simt

// ---------------------------------------------------------------- functions called by instrumented code

#define SIMT_HANDLER(name, bytes, access)                                            \
  extern "C" void name(void* address) {                                              \
    simt::check_access(address, bytes, access, __builtin_return_address(0));         \
  }
#define SIMT_HANDLERS(bytes)                                                         \
  SIMT_HANDLER(__tsan_read##bytes, bytes, simt::Access::read)                        \
  SIMT_HANDLER(__tsan_write##bytes, bytes, simt::Access::write)                      \
  SIMT_HANDLER(__tsan_unaligned_read##bytes, bytes, simt::Access::read)              \
  SIMT_HANDLER(__tsan_unaligned_write##bytes, bytes, simt::Access::write)            \
  SIMT_HANDLER(__tsan_volatile_read##bytes, bytes, simt::Access::read)               \
  SIMT_HANDLER(__tsan_volatile_write##bytes, bytes, simt::Access::write)
SIMT_HANDLERS(1)
SIMT_HANDLERS(2)
SIMT_HANDLERS(4)
SIMT_HANDLERS(8)
SIMT_HANDLERS(16)

extern "C" {
void __tsan_read_range(void* address, uint64_t bytes) {
  simt::check_access(address, bytes, simt::Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, uint64_t bytes) {
  simt::check_access(address, bytes, simt::Access::write, __builtin_return_address(0));
}
void __tsan_init() {}
void __sanitizer_cov_trace_pc() { simt::enter_basic_block(__builtin_return_address(0)); }
void __tsan_func_entry(void* caller) { simt::enter_function(caller); }
void __tsan_func_exit() { simt::leave_function(); }

void __assertfail(const char* what, const char*, unsigned, const char*, unsigned long) {
  simt::report("assertion failed: %s", what);
  simt::abandon();
}

// Every handler of the undefined-behaviour checks gets data that begins with the source location.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

[[noreturn]] static void undefined(const SourceLocation* where, const char* what) {
  simt::report("line %u: %s", where->line, what);
  simt::abandon();
}
void __ubsan_handle_out_of_bounds(SourceLocation* where, void*) {
  undefined(where, "an index is outside of its array");
}
void __ubsan_handle_divrem_overflow(SourceLocation* where, void*, void*) {
  undefined(where, "an integer is divided by zero");
}
void __ubsan_handle_type_mismatch_v1(SourceLocation* where, void*) {
  undefined(where, "a load or store is not aligned to its type");
}
}
