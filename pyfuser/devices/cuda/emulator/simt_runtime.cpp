// Simulates the threads of a CUDA launch on one CPU thread, and checks what they do.  Each CUDA
// thread is a fiber that runs until it waits at a barrier, one block at a time, in an order drawn
// from a seed.  Kernel objects are compiled with sanitizers but linked with the handlers of
// simt_handlers.h instead of the sanitizers' own runtimes, so that every load and store of a kernel
// calls check_access.  An access outside every buffer, a race, or a read of uninitialised shared
// memory ends the launch with a message before the access is made; simt_counters.h counts the
// others.  This file itself is compiled without instrumentation.
#include "simt_interface.h"
#include "simt_counters.h"
#include "simt_races.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <unordered_map>
#include <vector>

// The linker puts it after the kernel's shared memory: what is in it is outside.
__attribute__((section("simt_shared"), used, aligned(16))) static char after_shared[256];

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
// From the linker: the addresses of this shared object and its shared-memory section.
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
extern char __start_simt_shared[] __attribute__((visibility("hidden")));
// From operations.py: the address of a basic block, its number of operations, whether a GPU's
// compiler would predicate it; then those of the next block.
extern uint64_t __start_simt_blocks[] __attribute__((weak, visibility("hidden")));
extern uint64_t __stop_simt_blocks[] __attribute__((weak, visibility("hidden")));
}

extern "C" void __asan_unpoison_memory_region(const void*, size_t) __attribute__((weak));

namespace simt {
namespace {

enum class State { ready, at_barrier, at_warp, left };
constexpr uint64_t most_neighbours = 32;  // blocks of a sample that are next to each other
constexpr size_t stack_bytes = 128 * 1024;
// Buffers beyond this are not watched for races: a byte takes 28 bytes.
constexpr uint64_t most_watched_bytes = 32 << 20;
constexpr unsigned most_accesses = 1u << 25;  // of a thread between barriers: with more, it spins

// The compiler's own setjmp: it saves no more than it must, and AddressSanitizer's runtime doesn't take
// a jump for one that leaves functions.
using Context = void*[5];

struct Fiber {
  Context context;
  ucontext_t first_context;
  bool started;
  State state;
  uint3 thread;
  unsigned index;
  int line;  // of the barrier or warp operation it waits at
  void* place;  // its address
  std::vector<void*> callers;  // of the functions that it is in
  bool predicate;
  unsigned answer;
  WarpOperation operation;
  unsigned mask;
  int source;
  uint64_t value, result;
};

struct Memory {
  Region region;
  Watch watch;
};

// A write that races with another one, unless both write the same.
struct Doubt {
  char* address;
  uint64_t bytes;  // 0: there is none
  char before[16];
  void* place;
  uint64_t offset;
};

struct Launch {
  const Request* request;
  Body body;
  bool failed;
  unsigned interval;  // counts block barriers over the whole launch, so no cell is ever cleared
  unsigned first_interval;  // of the current block
  bool has_fence, is_last;  // the current block: see simt_races.h
  Doubt doubt;
  unsigned thread_count;
  std::vector<Fiber> fibers;
  std::vector<unsigned> warp_intervals;
  std::vector<Memory> buffers;
  Region stacks, image;
  Memory static_shared, dynamic_shared;
  std::vector<char> dynamic_storage;
  std::mt19937_64 random;
  Counting counting;
};

const Region shared_end = {after_shared, sizeof(after_shared)};

Launch state;
Fiber* current;
unsigned accesses;  // of the current fiber since it was resumed
Context scheduler;

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

// Notes where a thread is when it fails.
void locate(const Fiber& fiber, void* place) {
  uint64_t* counters = state.request->program_counters;
  if (counters[0]) return;
  counters[0] = uint64_t(static_cast<char*>(place) - __ehdr_start);
  if (fiber.callers.size() > 1) {
    counters[1] = uint64_t(static_cast<char*>(fiber.callers[1]) - __ehdr_start);
  }
}

// ---------------------------------------------------------------- fibers

void settle();

[[noreturn, gnu::noinline]] void abandon() { __builtin_longjmp(scheduler, 1); }

[[gnu::noinline]] void to_scheduler() {
  settle();
  if (__builtin_setjmp(current->context) == 0) abandon();
  asm volatile("" ::: "memory");
}

void fiber_main() {
  for (;;) {
    current->callers.clear();
    state.body(state.request->arguments);
    current->state = State::left;
    to_scheduler();
  }
}

[[noreturn, gnu::noinline]] void go_on() {
  if (current->started) __builtin_longjmp(current->context, 1);
  current->started = true;
  setcontext(&current->first_context);
  __builtin_unreachable();
}

[[gnu::noinline]] void resume(Fiber& fiber) {
  current = &fiber;
  accesses = 0;
  threadIdx = fiber.thread;
  if (__builtin_setjmp(scheduler) == 0) go_on();
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
        locate(model, model.place);
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
    locate(stuck, stuck.place);
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
  state.first_interval = state.interval += 1;
  state.has_fence = state.is_last = false;
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
  const uint64_t all = blocks.size();
  // Whole rows of the grid, if they are short: their blocks may ask for the same sectors.
  const uint64_t row = grid[0] <= most_neighbours ? grid[0] : 1;
  const uint64_t neighbours = most_neighbours / row * row;
  // Neighbours, which share a cache, in groups a step of the golden ratio apart: even, and never in
  // step with the blocks of a longer row.  Of few blocks, groups would overlap.
  const uint64_t most = std::max(state.request->most_blocks / neighbours, uint64_t(1)) * neighbours;
  if (state.request->most_blocks && 2 * most < all) {
    for (uint64_t i = 0; i < most; ++i) {
      double position = double(i / neighbours) * 0.6180339887498949;
      uint64_t first = uint64_t((position - std::floor(position)) * double(all)) / row * row;
      blocks[i] = (first + i % neighbours) % all;
    }
    blocks.resize(most);
  }
  if (state.request->seed) std::shuffle(blocks.begin(), blocks.end(), state.random);
  std::vector<unsigned> order(state.thread_count);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  for (uint64_t i : blocks) {
    blockIdx = {unsigned(i % grid[0]), unsigned(i / grid[0] % grid[1]),
                unsigned(i / grid[0] / grid[1])};
    if (state.counting.wanted()) state.counting.begin_block(state.thread_count, neighbours);
    run_block(order);
    if (state.failed) return;
    if (!state.counting.wanted()) continue;
    state.counting.end_block();
    if (blocks.size() < all && state.counting.accesses() >= state.request->enough_accesses) break;
  }
  if (state.counting.wanted()) state.counting.end();
}

// ---------------------------------------------------------------- checks of memory accesses

const char* verb(Access access) {
  return access == Access::read ? "reads" : access == Access::write ? "writes" : "updates";
}

[[noreturn]] void fail_at(void* place) {
  locate(*current, place);
  abandon();
}

// Threads may write the same to one element, as those do that compute the same.
void settle() {
  Doubt doubt = state.doubt;
  state.doubt.bytes = 0;
  if (!doubt.bytes || !memcmp(doubt.address, doubt.before, doubt.bytes)) return;
  report("race in global memory: writes byte %lu, where another thread wrote something else",
         (unsigned long)doubt.offset);
  fail_at(doubt.place);
}

// Fails for a race, and for a read of uninitialised shared memory.
void check_order(Memory& memory, bool is_global, const char* address, uint64_t bytes,
                 Access access, void* place) {
  if (!state.request->checks_order) return;
  const char* where = is_global ? "global memory" : "shared memory";
  uint64_t offset = uint64_t(address - memory.region.start);
  unsigned thread = current->index;
  Moment now{state.interval, uint16_t(thread + 1), uint16_t(state.warp_intervals[thread / 32])};
  if (access == Access::atomic && state.has_fence) {
    state.is_last |= memory.watch.is_counter(offset, state.first_interval);
  }
  Finding found =
      memory.watch.note(offset, bytes, access, now, state.first_interval, state.is_last);
  if (found.kind == Finding::Kind::nothing) return;
  const bool both_write = found.with_write && access == Access::write;
  if (is_global && both_write && bytes <= sizeof(Doubt::before)) {
    state.doubt = {const_cast<char*>(address), bytes, {}, place, offset};
    memcpy(state.doubt.before, address, bytes);
    memory.watch.overwrite(offset, bytes, now);
    return;
  }
  unsigned long byte = offset + found.offset;
  if (found.kind == Finding::Kind::uninitialised) {
    report("%s byte %lu of %s, which this block has not written yet", verb(access), byte, where);
  } else if (found.kind == Finding::Kind::race_of_blocks) {
    report("race in %s: %s byte %lu, which another block touched", where, verb(access), byte);
  } else {
    const uint3& other = state.fibers[found.other].thread;
    report("race in %s: %s byte %lu, which thread (%u, %u, %u) touched with no barrier between "
           "them", where, verb(access), byte, other.x, other.y, other.z);
  }
  fail_at(place);
}

[[noreturn]] void fail_outside(const char* address, uint64_t bytes, Access access, void* counter) {
  unsigned long nearest = 0;
  long distance = 0;
  for (unsigned long i = 0; i < state.buffers.size(); ++i) {
    const Region& buffer = state.buffers[i].region;
    long off = address - buffer.start;
    if (off >= 0) off += long(bytes) - long(buffer.bytes);
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

bool is_local(void* address, uint64_t bytes) {
  return state.stacks.holds(static_cast<char*>(address), bytes);
}

void check_access(void* pointer, uint64_t bytes, Access access, void* counter) {
  if (!current) return;
  if (++accesses > most_accesses) {
    report("spins: %u accesses of memory with no barrier", most_accesses);
    fail_at(counter);
  }
  settle();
  const char* address = static_cast<const char*>(pointer);
  if (state.stacks.holds(address, bytes)) return;
  const bool is_counted = state.counting.wanted() && access != Access::atomic;
  if (state.counting.wanted() && access == Access::atomic) state.counting.atomic();
  for (Memory* shared : {&state.static_shared, &state.dynamic_shared}) {
    if (!shared->region.holds(address, bytes)) continue;
    uint64_t offset = uint64_t(address - shared->region.start);
    if (is_counted) state.counting.shared_access(current->index, counter, offset, bytes);
    return check_order(*shared, false, address, bytes, access, counter);
  }
  if (shared_end.holds(address, 1)) fail_outside(address, bytes, access, counter);
  for (size_t i = 0; i < state.buffers.size(); ++i) {
    if (!state.buffers[i].region.holds(address, bytes)) continue;
    if (is_counted) {
      state.counting.global_access(current->index, counter, i, address, bytes,
                                   access == Access::write);
    }
    return check_order(state.buffers[i], true, address, bytes, access, counter);
  }
  // Constants of the kernel are in its image; so is the emulator's state.
  if (access == Access::read && state.image.holds(address, bytes)) return;
  fail_outside(address, bytes, access, counter);
}

void set_regions() {
  const Request& request = *state.request;
  state.image = {__ehdr_start, uint64_t(_end - __ehdr_start)};
  uint64_t fixed_bytes = uint64_t(shared_end.start - __start_simt_shared);
  state.static_shared.region = {__start_simt_shared, fixed_bytes};
  state.static_shared.watch.begin(fixed_bytes, true);
  constexpr uint64_t alignment = 128;
  state.dynamic_storage.assign(request.shared_bytes + alignment, 0);
  uint64_t start = (uint64_t(state.dynamic_storage.data()) + alignment - 1) / alignment * alignment;
  state.dynamic_shared.region = {reinterpret_cast<char*>(start), request.shared_bytes};
  state.dynamic_shared.watch.begin(request.shared_bytes, true);
  uint64_t watched = 0;
  std::vector<Region> regions;
  for (uint64_t i = 0; i < request.buffer_count; ++i) {
    Memory buffer{{reinterpret_cast<char*>(request.buffer_starts[i]), request.buffer_bytes[i]}, {}};
    watched += buffer.region.bytes;
    if (watched <= most_watched_bytes) buffer.watch.begin(buffer.region.bytes, false);
    regions.push_back(buffer.region);
    state.buffers.push_back(std::move(buffer));
  }
  state.counting.begin(request, regions, state.thread_count);
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
  // Functions that were left in the middle haven't taken their marks off.
  if (state.failed && __asan_unpoison_memory_region) {
    __asan_unpoison_memory_region(state.stacks.start, state.stacks.bytes);
  }
  munmap(state.stacks.start, state.stacks.bytes);
  bool failed = state.failed;
  state = Launch();  // what was noted of each byte is many times as large as the tensors
  return failed;
}

unsigned block_barrier(int line, bool predicate) {
  current->line = line;
  current->place = __builtin_return_address(0);
  current->predicate = predicate;
  current->state = State::at_barrier;
  to_scheduler();
  return current->answer;
}

uint64_t warp_exchange(int line, WarpOperation operation, unsigned mask, uint64_t value,
                       int source) {
  if (!(mask >> (current->index % 32) & 1)) {
    report("line %d: the mask 0x%08x leaves out the calling lane", line, mask);
    fail_at(__builtin_return_address(0));
  }
  current->line = line;
  current->place = __builtin_return_address(0);
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

void fence() { state.has_fence = true; }

void enter_function(void* caller) {
  if (!current) return;
  current->callers.push_back(caller);
  if (state.counting.wanted()) state.counting.enter(current->index, caller);
}

void leave_function() {
  if (!current) return;
  current->callers.pop_back();
  if (state.counting.wanted()) state.counting.leave(current->index);
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
  // A sample is about memory.
  if (!current || !state.counting.wanted() || state.request->most_blocks) return;
  auto found = basic_blocks().find(uint64_t(site));
  const BasicBlock unknown = {0, false};
  state.counting.basic_block(current->index, site,
                             found == basic_blocks().end() ? unknown : found->second);
}

void* dynamic_shared_memory() { return state.dynamic_shared.region.start; }

unsigned lane() { return current->index % 32; }

}  // namespace simt

#include "simt_handlers.h"
