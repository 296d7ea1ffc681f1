// The share of the second cache of some blocks that run together: which of their sectors are still
// there when they ask for them again.  The least recently used one makes room for another; a sector that is written is there too.
#pragma once

#include <stdint.h>

#include <list>
#include <unordered_map>

namespace simt {

class Cache {
 public:
  // Forgets everything: what other blocks had there isn't theirs.
  void begin(uint64_t sectors) {
    most_ = sectors;
    recent_.clear();
    places_.clear();
  }

  // True if the sector is there; afterwards it is.
  bool touch(uint64_t sector) {
    auto [found, is_new] = places_.try_emplace(sector);
    if (!is_new) {
      recent_.splice(recent_.begin(), recent_, found->second);
      return true;
    }
    found->second = recent_.insert(recent_.begin(), sector);
    if (places_.size() > most_) {
      places_.erase(recent_.back());
      recent_.pop_back();
    }
    return false;
  }

 private:
  uint64_t most_ = 0;
  std::list<uint64_t> recent_;  // the last one used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace simt
