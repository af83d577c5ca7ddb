// SPDX-License-Identifier: Apache-2.0
//
// File: elastic_growth.h
//
// How much memory `elastic` keeps, and in what pieces it comes. A driver charges
// for handles, hardly for their bytes, and a mapped handle leaves only whole: large
// handles are fast, small ones waste little. This weighs the two by how much idle
// memory the policy's slack allows and how much of it large handles pin.
//
//   ElasticGrowth growth(/*slack=*/0.05, /*granule=*/2 << 20);
//   growth.Allocated(bytes);
//   growth.NotePressure(state);                  // when the budget does not suffice
//   uint64_t handle = growth.NextHandle(piece);
//
// Numbers in, numbers out: no driver, no chunk. Thread-compatible.
#ifndef HBMALLOC_STRATEGIES_ELASTIC_GROWTH_H_
#define HBMALLOC_STRATEGIES_ELASTIC_GROWTH_H_

#include <algorithm>
#include <cstdint>

namespace hbm::strategies {

class ElasticGrowth {
 public:
  ElasticGrowth(double slack, std::uint64_t granule);

  void Allocated(std::uint64_t requested) {
    live_ += requested;
    if (live_ > peak_) {
      peak_ = live_;
      UpdateTightness();
    }
  }
  void Freed(std::uint64_t requested) {
    live_ -= requested;
    freed_ += requested;
  }
  // The request that memory is being found for counts as live meanwhile. 0: none.
  void SetWanted(std::uint64_t requested) { wanted_ = requested; }

  std::uint64_t live() const { return live_ + wanted_; }
  std::uint64_t peak() const { return std::max(peak_, live()); }
  // Slack 0: as tight as pages allow, whatever the driver charges.
  bool is_tightest() const { return slack_ == 0; }
  // Slack inf: pages stay where they are as long as the limit allows.
  bool never_steals() const { return never_steals_; }
  // Blocks below this many bytes are kept together, so that they pin few pages.
  std::uint64_t small_bytes() const { return small_bytes_; }
  // Whether a block goes where it newly occupies the fewest pages, instead of into
  // the best fitting backed chunk.
  bool PlacesTightly() const { return places_tightly_; }

  // Up to this many bytes of pool, new memory is made before pages are stolen.
  std::uint64_t Budget(std::uint64_t limit) const;

  // What is known when a request needs more than the budget has left. In bytes.
  struct Pressure {
    std::uint64_t pool_with_need = 0;  // the pool, if all that is needed were new
    std::uint64_t idle = 0;            // of handles that could be stolen, now or soon
    std::uint64_t largest_pinned = 0;  // of the largest free chunk, what could not
  };
  // Large handles pin too much: they become smaller, and larger again when little
  // is pinned.
  void NotePressure(const Pressure& pressure);

  // One unbacked piece that is to be filled from its start. In bytes.
  struct Piece {
    std::uint64_t wanted = 0;  // that the block needs
    std::uint64_t room = 0;    // of the hole, from the piece's start: >= wanted
    bool is_small = false;     // among the small blocks
    std::uint64_t pool = 0;
    std::uint64_t limit = 0;
    bool can_steal = false;  // there are idle handles elsewhere
  };
  // The size of the handle that the piece would best start with.
  std::uint64_t NextHandle(const Piece& piece) const;
  // The largest handle that is mapped beyond what a block needs.
  std::uint64_t SpareHandle(bool is_small) const;

 private:
  void UpdateTightness();
  std::uint64_t FloorToGranule(double bytes) const;
  double SlackBytes() const { return slack_ * static_cast<double>(peak()); }
  std::uint64_t HandleBytes(bool is_small) const;
  std::uint64_t NextHandleWithoutStealing(const Piece& piece) const;

  const double slack_;
  const bool never_steals_;
  const std::uint64_t granule_;
  const std::uint64_t small_bytes_;
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t wanted_ = 0;
  bool places_tightly_ = true;
  std::uint64_t largest_handle_;
  std::uint64_t freed_ = 0;            // bytes, ever
  std::uint64_t freed_at_shrink_ = 0;  // when the handles last became smaller
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_ELASTIC_GROWTH_H_
