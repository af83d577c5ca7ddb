// SPDX-License-Identifier: Apache-2.0
//
// File: pairs.h
//
// The same requests for any allocator, and what a pair of one request and one free
// costs the host: nanoseconds, the best of five rounds.
//
//   PairCosts costs = MeasurePairs([&](size_t n) { return Take(n); }, [&](void* p) { Give(p); });
//
// Every round makes the same requests, and one round goes before those that count:
// an allocator that keeps memory meets all of them from what it has.
#ifndef HBMALLOC_TESTS_GPU_PAIRS_H_
#define HBMALLOC_TESTS_GPU_PAIRS_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace hbm::testing {

struct PairCosts {
  double one_block = 0;    // 1 MiB, freed at once
  double many_blocks = 0;  // among 1,000 live blocks of 512 B to 4 MiB
};

template <typename Round>
double BestNanoseconds(int pairs, Round round) {
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    const auto start = std::chrono::steady_clock::now();
    round();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (i != 0) best = std::min(best, took.count() / pairs);
  }
  return best;
}

template <typename Take, typename Give>
PairCosts MeasurePairs(Take take, Give give, int pairs = 20000) {
  PairCosts costs;
  costs.one_block = BestNanoseconds(pairs, [&] {
    for (int i = 0; i < pairs; ++i) give(take(std::size_t{1} << 20));
  });
  std::mt19937 random(5);
  std::vector<std::size_t> sizes(4096);
  std::vector<std::size_t> places(4096);
  for (std::size_t& size : sizes) {
    size = static_cast<std::size_t>(512.0 *
                                    std::pow(2.0, static_cast<double>(random() % 1300) / 100.0));
  }
  for (std::size_t& place : places) place = random() % 1000;
  costs.many_blocks = BestNanoseconds(pairs, [&] {
    std::vector<void*> live(1000, nullptr);
    for (int i = 0; i < pairs; ++i) {
      void*& block = live[places[static_cast<std::size_t>(i) % 4096]];
      if (block != nullptr) give(block);
      block = take(sizes[static_cast<std::size_t>(i * 7) % 4096]);
    }
    for (void* const block : live) {
      if (block != nullptr) give(block);
    }
  });
  return costs;
}

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_GPU_PAIRS_H_
