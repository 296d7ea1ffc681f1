// Finds races and reads of uninitialised shared memory, by the last accesses of each byte.  Time is
// counted in intervals: one ends at each __syncthreads and at the end of each block, and in each of
// them a warp's own intervals end at its warp operations.  Two accesses of a byte by two threads,
// one of which writes, race unless they are ordered: both atomic, in two intervals of one block, or
// in two of one warp's.  Blocks are not ordered, so global memory that two of them access is a race
// even though one runs after the other here; but a block is ordered after all earlier ones once it
// has updated a counter that they updated, with __threadfence before it.
#pragma once

#include <stdint.h>
#include <sys/mman.h>

namespace simt {

enum class Access { read, write, atomic };

struct Region {
  char* start;
  uint64_t bytes;
  bool holds(const char* address, uint64_t size) const {
    return address >= start && address + size <= start + bytes;
  }
};

// When a thread of a launch accessed something; zeros: never.
struct Moment {
  uint32_t interval;
  uint16_t thread;         // its index in the block, plus one
  uint16_t warp_interval;  // the lowest bits of its number
};

struct Finding {
  enum class Kind { nothing, race, race_of_blocks, uninitialised } kind;
  unsigned other;    // the thread that it races with
  bool with_write;   // of the other thread or block
  uint64_t offset;   // of the byte
};

// The bytes of one region of memory, during a launch.
class Watch {
 public:
  Watch() = default;
  Watch(const Watch&) = delete;
  Watch(Watch&& other) { *this = static_cast<Watch&&>(other); }
  Watch& operator=(Watch&& other) {
    end();
    cells_ = other.cells_;
    bytes_ = other.bytes_;
    is_shared_ = other.is_shared_;
    other.cells_ = nullptr;
    return *this;
  }
  ~Watch() { end(); }

  // Pages that no access touches need no memory.
  void begin(uint64_t bytes, bool is_shared) {
    end();
    is_shared_ = is_shared;
    bytes_ = bytes;
    if (!bytes) return;
    void* memory = mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) cells_ = static_cast<Cell*>(memory);
  }

  // `first`: the interval in which the current block began; `is_last`: it is ordered after others.
  Finding note(uint64_t offset, uint64_t bytes, Access access, Moment now, uint32_t first,
               bool is_last) {
    for (uint64_t i = offset; cells_ && i < offset + bytes; ++i) {
      if (is_last) forget_others(cells_[i], first);
      Finding found = note(cells_[i], access, now, first);
      if (found.kind != Finding::Kind::nothing) return {found.kind, found.other, found.with_write, i - offset};
    }
    return nothing;
  }

  // Whether another block updated this byte last.
  bool is_counter(uint64_t offset, uint32_t first) const {
    return cells_ && cells_[offset].is_atomic && cells_[offset].write.interval < first;
  }

  // The bytes are written, in spite of a race.
  void overwrite(uint64_t offset, uint64_t bytes, Moment now) {
    for (uint64_t i = offset; i < offset + bytes; ++i) cells_[i] = {now, {}, {}, false, false};
  }

 private:
  struct Cell {
    Moment write, read, other_read;  // two readers: one of them isn't the writer
    bool is_atomic, has_foreign_reader;
  };
  static constexpr Finding nothing = {Finding::Kind::nothing, 0, false, 0};

  Finding note(Cell& cell, Access access, Moment now, uint32_t first) {
    bool is_written = cell.write.thread && (!is_shared_ || cell.write.interval >= first);
    if (is_shared_ && !is_written && access != Access::write) {
      return {Finding::Kind::uninitialised, 0, false, 0};
    }
    bool both_atomic = access == Access::atomic && cell.is_atomic;
    if (!both_atomic) {
      Finding found = race(cell.write, now, first);
      found.with_write = true;
      if (found.kind != Finding::Kind::nothing) return found;
    }
    if (access == Access::read) {
      if (cell.read.thread && cell.read.interval < first) cell.has_foreign_reader = true;
      if (cell.read.thread != now.thread && cell.read.interval == now.interval) {
        cell.other_read = cell.read;
      }
      cell.read = now;
      return nothing;
    }
    if (!is_shared_ && cell.has_foreign_reader) return {Finding::Kind::race_of_blocks, 0, false, 0};
    for (const Moment* each : {&cell.read, &cell.other_read}) {
      Finding found = race(*each, now, first);
      if (found.kind != Finding::Kind::nothing) return found;
    }
    cell.write = now;
    cell.is_atomic = access == Access::atomic;
    return nothing;
  }

  static void forget_others(Cell& cell, uint32_t first) {
    for (Moment* each : {&cell.write, &cell.read, &cell.other_read}) {
      if (each->interval < first) *each = {};
    }
    cell.has_foreign_reader = false;
  }

  Finding race(const Moment& before, const Moment& now, uint32_t first) const {
    if (!before.thread) return nothing;
    if (before.interval < first) {
      return is_shared_ ? nothing : Finding{Finding::Kind::race_of_blocks, 0, false, 0};
    }
    if (before.thread == now.thread || before.interval != now.interval) return nothing;
    bool same_warp = (before.thread - 1) / 32 == (now.thread - 1) / 32;
    if (same_warp && before.warp_interval != now.warp_interval) return nothing;
    return {Finding::Kind::race, before.thread - 1u, false, 0};
  }

  void end() {
    if (cells_) munmap(cells_, bytes_ * sizeof(Cell));
    cells_ = nullptr;
  }

  Cell* cells_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_shared_ = false;
};

}  // namespace simt
