// SPDX-License-Identifier: Apache-2.0
//
// File: forked.h
//
// Tells a process from the child that fork made of it. What belongs to a process
// alone (a driver's context, threads, locks on files) remembers the generation that
// it was made in, and is not used in another one:
//
//   const std::uint32_t made_in = core::ForkGeneration();
//   ...
//   if (made_in != core::ForkGeneration()) return absl::FailedPreconditionError(...);
//
// Reading it costs one load. Children that were made by a bare clone(), without the C
// library's knowledge, are not seen.
#ifndef HBMALLOC_CORE_FORKED_H_
#define HBMALLOC_CORE_FORKED_H_

#include <atomic>
#include <cstdint>

namespace hbm::core {

// How often this process's ancestors and itself came out of a fork as the child,
// counted since the first call.
std::uint32_t ForkGeneration();

// Raises a flag in every child of fork, for code that can look at no more than a flag
// that it looks at anyway. Thread-safe; at most 4,096 at once, later ones do nothing.
class RaisedInChild {
 public:
  explicit RaisedInChild(std::atomic<bool>* flag);
  ~RaisedInChild();
  RaisedInChild(const RaisedInChild&) = delete;
  RaisedInChild& operator=(const RaisedInChild&) = delete;

  bool IsInChild() const { return made_in_ != ForkGeneration(); }

 private:
  std::atomic<bool>* const flag_;
  const std::uint32_t made_in_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_FORKED_H_
