// Which bytes of a buffer a launch read and wrote.  Pages that no access touches need no memory, and
// no time in the end: a sample of blocks can be run on tensors that are larger than this machine's memory.
#pragma once

#include <stdint.h>
#include <sys/mman.h>

#include <vector>

namespace simt {

class Touched {
 public:
  static constexpr char read = 1, written = 2;

  explicit Touched(uint64_t bytes) : bytes_(bytes), pages_((bytes + page_bytes - 1) / page_bytes) {
    if (!bytes) return;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) marks_ = static_cast<char*>(memory);
  }
  Touched(const Touched&) = delete;
  Touched(Touched&& other) : bytes_(other.bytes_), marks_(other.marks_), pages_(std::move(other.pages_)) {
    other.marks_ = nullptr;
  }
  Touched& operator=(Touched&&) = delete;
  ~Touched() {
    if (marks_) munmap(marks_, bytes_);
  }

  void note(uint64_t offset, uint64_t bytes, bool writes) {
    if (!marks_) return;
    for (uint64_t i = offset; i < offset + bytes; ++i) marks_[i] |= writes ? written : read;
    pages_[offset / page_bytes] = pages_[(offset + bytes - 1) / page_bytes] = true;
  }

  // Calls `visit(offset, mark)` for each byte of the pages that were touched, in ascending order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (uint64_t page = 0; page < pages_.size(); ++page) {
      if (!pages_[page]) continue;
      for (uint64_t i = page * page_bytes; i < bytes_ && i < (page + 1) * page_bytes; ++i) {
        visit(i, marks_[i]);
      }
    }
  }

 private:
  static constexpr uint64_t page_bytes = 4096;

  uint64_t bytes_;
  char* marks_ = nullptr;
  std::vector<bool> pages_;
};

}  // namespace simt
