// Counts what a GPU's profiler counts: warp-level requests, the 32-byte sectors that they touch,
// bank conflicts of shared memory, barriers, atomics, divergent branches, operations.  simt_runtime.cpp tells it of every access of
// a launch that wants counts.  The lanes of a warp run one after the other, so their accesses are
// put together again: lanes access memory at once if they are at the same instruction (return
// address and calls that led to it) for the n-th time since the last __syncthreads.  A lane that
// skips iterations of a loop and then joins the others is therefore counted one iteration early.
// In the same way, lanes are at the end of a basic block at once: a branch diverges if they go on
// to different blocks, none of which a GPU's compiler would rather predicate.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "simt_interface.h"
#include "simt_cache.h"
#include "simt_races.h"
#include "simt_touched.h"

namespace simt {

constexpr uint64_t sector_bytes = 32, bank_bytes = 4, most_bytes = 16;  // of a lane's instruction
constexpr unsigned lanes_of_warp = 32, banks = 32;

// From operations.py.
struct BasicBlock {
  uint64_t operations;
  bool is_predicated;
};

class Counting {
 public:
  void begin(const Request& request, const std::vector<Region>& buffers, unsigned threads) {
    *this = Counting();
    counts_ = request.counts;
    if (!counts_) return;
    *counts_ = Counts();
    first_scratch_ = request.buffer_count - request.scratch_count;
    paths_.assign(threads, {0});
    last_blocks_.assign(threads, 0);
    buffers_ = buffers;
    buffer_counts_ = request.buffer_counts;
    cache_sectors_ = request.cache_sectors;
    for (const Region& buffer : buffers) touched_.emplace_back(buffer.bytes);
  }

  bool wanted() const { return counts_; }

  void enter(unsigned thread, void* caller) {
    paths_[thread].push_back(mixed(paths_[thread].back(), uint64_t(caller)));
  }
  void leave(unsigned thread) { paths_[thread].pop_back(); }

  void global_access(unsigned thread, void* site, size_t buffer, const char* address,
                     uint64_t bytes, bool writes) {
    touched_[buffer].note(uint64_t(address - buffers_[buffer].start), bytes, writes);
    record(thread, site, writes ? Kind::write : Kind::read, buffer, uint64_t(address), bytes);
  }

  // Offsets from the start of the region: its place among the banks changes no number of conflicts.
  void shared_access(unsigned thread, void* site, uint64_t offset, uint64_t bytes) {
    record(thread, site, Kind::shared, 0, offset, bytes);
  }

  // A thread has arrived at a basic block.
  void basic_block(unsigned thread, void* site, const BasicBlock& block) {
    counts_->operations += block.operations;
    uint64_t place = mixed(paths_[thread].back(), uint64_t(site));
    if (last_blocks_[thread] && !block.is_predicated) {
      auto [found, is_new] = next_blocks_.try_emplace(last_blocks_[thread], place);
      if (!is_new && found->second != place && found->second != diverged) {
        counts_->divergent_branches += 1;
        found->second = diverged;
      }
    }
    unsigned occurrence = occurrences_[mixed(place, thread)]++;
    uint64_t moment = mixed(mixed(place, occurrence), interval_);
    last_blocks_[thread] = mixed(moment, thread / lanes_of_warp) | 1;
  }
  void begin_block(uint64_t threads, uint64_t neighbours) {
    counts_->threads += threads;
    if (counts_->blocks++ % neighbours == 0) cache_.begin(neighbours * cache_sectors_);
  }
  uint64_t accesses() const { return accesses_; }
  void end_block() {
    end_interval();
    next_blocks_.clear();
    std::fill(last_blocks_.begin(), last_blocks_.end(), 0);
  }
  void atomic() {
    counts_->atomics += 1;
    counts_->operations += 1;
  }
  void warp_operation() { counts_->warp_operations += 1; }
  void barrier() {
    counts_->barriers += 1;
    end_interval();
  }

  // No access after it is part of a request before it.
  void end_interval() {
    for (const WarpRequest& request : requests_) count(request);
    requests_.clear();
    numbers_.clear();
    occurrences_.clear();
    interval_ += 1;
  }

  void end() {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      count_touched(i, touched_[i], i >= first_scratch_);
    }
  }

 private:
  enum class Kind { read, write, shared };
  static constexpr uint64_t diverged = 0;

  struct WarpRequest {
    Kind kind;
    size_t buffer;   // of the first lane
    uint64_t bytes;  // of each lane
    unsigned lanes;  // a bit for each that takes part
    uint64_t addresses[lanes_of_warp];
  };

  static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
  }

  // An access of more bytes than one instruction moves is several instructions.
  void record(unsigned thread, void* site, Kind kind, size_t buffer, uint64_t address,
              uint64_t bytes) {
    accesses_ += 1;
    uint64_t instruction = mixed(paths_[thread].back(), uint64_t(site));
    for (uint64_t done = 0; done < bytes; done += most_bytes) {
      counts_->operations += 1;
      uint64_t part = mixed(instruction, done);
      unsigned occurrence = occurrences_[mixed(part, thread)]++;
      uint64_t key = mixed(mixed(part, occurrence), thread / lanes_of_warp);
      auto [found, is_new] = numbers_.try_emplace(key, requests_.size());
      if (is_new) requests_.push_back({kind, buffer, std::min(bytes - done, most_bytes), 0, {}});
      WarpRequest& request = requests_[found->second];
      request.lanes |= 1u << thread % lanes_of_warp;
      request.addresses[thread % lanes_of_warp] = address + done;
    }
  }

  void count(const WarpRequest& request) {
    if (request.kind == Kind::shared) {
      counts_->shared_requests += 1;
      counts_->bank_conflicts += conflicts(request);
      return;
    }
    bool writes = request.kind == Kind::write;
    (writes ? counts_->write_requests : counts_->read_requests) += 1;
    uint64_t sectors = units(request, ~0u, sector_bytes);
    (writes ? counts_->write_sectors : counts_->read_sectors) += sectors;
    BufferCounts& of_buffer = buffer_counts_[request.buffer];
    of_buffer.sectors[writes] += sectors;
    if (!cache_sectors_) return;
    for (uint64_t sector : units_) of_buffer.missed[writes] += !cache_.touch(sector);
  }

  // How many units of memory (sectors, words) these lanes touch; `units_` holds them afterwards.
  uint64_t units(const WarpRequest& request, unsigned lanes, uint64_t unit_bytes) {
    units_.clear();
    for (unsigned lane = 0; lane < lanes_of_warp; ++lane) {
      if (!((request.lanes & lanes) >> lane & 1)) continue;
      uint64_t first = request.addresses[lane] / unit_bytes;
      uint64_t last = (request.addresses[lane] + request.bytes - 1) / unit_bytes;
      for (uint64_t unit = first; unit <= last; ++unit) units_.push_back(unit);
    }
    std::sort(units_.begin(), units_.end());
    units_.erase(std::unique(units_.begin(), units_.end()), units_.end());
    return units_.size();
  }

  // Cycles beyond the first, of 32, 16 or 8 lanes at a time for accesses of up to 4, 8, 16 bytes.
  uint64_t conflicts(const WarpRequest& request) {
    unsigned together = lanes_of_warp;
    while (together > 8 && together * request.bytes > banks * bank_bytes) together /= 2;
    uint64_t extra = 0;
    for (unsigned first = 0; first < lanes_of_warp; first += together) {
      unsigned lanes = unsigned((uint64_t(1) << together) - 1) << first;
      if (!units(request, lanes, bank_bytes)) continue;
      unsigned words[banks] = {};
      for (uint64_t word : units_) words[word % banks] += 1;
      extra += *std::max_element(words, words + banks) - 1;
    }
    return extra;
  }

  void count_touched(size_t buffer, const Touched& touched, bool is_scratch) {
    uint64_t sectors[2] = {nowhere, nowhere};  // the last one read, and written
    touched.for_each([&](uint64_t offset, char mark) {
      uint64_t sector = (uint64_t(buffers_[buffer].start) + offset) / sector_bytes;
      for (int way = 0; way < 2; ++way) {
        if (!(mark & (way ? Touched::written : Touched::read))) continue;
        (is_scratch ? counts_->scratch_bytes
         : way      ? counts_->bytes_written
                    : counts_->bytes_read) += 1;
        if (sectors[way] == sector) continue;
        sectors[way] = sector;
        counts_->distinct_sectors += 1;
        buffer_counts_[buffer].distinct[way] += 1;
      }
    });
  }

  static constexpr uint64_t nowhere = ~uint64_t(0);

  Counts* counts_ = nullptr;
  size_t first_scratch_ = 0;
  std::vector<Region> buffers_;
  BufferCounts* buffer_counts_ = nullptr;
  uint64_t cache_sectors_ = 0;                  // 0: what a cache has isn't asked for
  Cache cache_;                                 // the current block's share
  uint64_t accesses_ = 0;                       // of memory, by threads
  std::vector<Touched> touched_;                // per buffer
  std::vector<std::vector<uint64_t>> paths_;    // per thread: a hash of each call in progress
  std::vector<WarpRequest> requests_;           // since the last __syncthreads, as are the next two
  std::unordered_map<uint64_t, size_t> numbers_;
  std::unordered_map<uint64_t, unsigned> occurrences_;
  std::vector<uint64_t> units_;
  uint64_t interval_ = 0;                       // how many __syncthreads there have been
  std::vector<uint64_t> last_blocks_;           // per thread: its last basic block, at a moment
  std::unordered_map<uint64_t, uint64_t> next_blocks_;  // of a block at a moment; or `diverged`
};

}  // namespace simt
