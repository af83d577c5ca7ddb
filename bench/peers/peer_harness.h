// SPDX-License-Identifier: Apache-2.0
//
// One replay loop for every allocator that the benchmarks compare with.
//
// A peer is a class with the five members below; everything else (reading the
// trace, timing, the integrals, the search for the smallest capacity, the
// threads, the JSON) is the same for all of them, so that a difference between
// two figures is a difference between two allocators. The header needs the
// standard library and a `gzip` program only: it knows nothing of hbmalloc and
// can be compiled next to any other library's headers.
//
//   class MyPeer {
//    public:
//     using Block = void*;                          // what names a live block
//     static constexpr Block kNone = nullptr;       // "no block"
//     Block Allocate(uint64_t bytes, uint32_t stream);          // kNone: failed
//     void Free(Block block, uint64_t bytes, uint32_t stream);
//     uint64_t PoolBytes() const;                   // held from the device now
//     uint64_t Offset(Block block) const;           // above the first region
//     static void EnterThread();                    // before a thread's first call
//   };
//   int main(int argc, char** argv) {
//     hbm_peers::Options options;
//     if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
//     return hbm_peers::RunPeer<MyPeer>(
//         options, "my_peer", [](const hbm_peers::Options& o) { return std::make_unique<MyPeer>(o);
//         });
//   }

#ifndef HBMALLOC_BENCH_PEERS_PEER_HARNESS_H_
#define HBMALLOC_BENCH_PEERS_PEER_HARNESS_H_

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hbm_peers {

constexpr uint64_t kGranule = uint64_t{2} << 20;  // the grid of `needs`

// ---------------------------------------------------------------- the trace

struct Event {
  uint64_t bytes;
  uint32_t block;   // the number of the `allocate` row, counted from 0
  uint16_t stream;  // of the allocation, on its free too
  bool is_free;
};

struct Trace {
  std::string name;
  std::vector<Event> events;
  std::vector<int64_t> time_us;       // one per event
  std::vector<uint64_t> block_bytes;  // one per `allocate` row
  std::vector<uint16_t> block_stream;
  std::vector<uint32_t> left_live;  // blocks that the trace never frees
  uint64_t peak_live_bytes = 0;     // every request counts, met or not
};

// Whole microseconds, or RMM's %H:%M:%S.%f.
inline int64_t ParseTime(const char* text) {
  int hours = 0;
  int minutes = 0;
  double seconds = 0;
  if (std::sscanf(text, "%d:%d:%lf", &hours, &minutes, &seconds) == 3) {
    return (int64_t{hours} * 3600 + minutes * 60) * 1000000 +
           static_cast<int64_t>(seconds * 1e6 + 0.5);
  }
  return std::strtoll(text, nullptr, 10);
}

inline std::string BaseName(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  for (const char* suffix : {".gz", ".csv"}) {
    const size_t n = std::strlen(suffix);
    if (name.size() > n && name.compare(name.size() - n, n, suffix) == 0) {
      name.resize(name.size() - n);
    }
  }
  return name;
}

// A pipe from `gzip -dc` rather than zlib: nothing to find or to link.
inline FILE* OpenTrace(const std::string& path) {
  if (path.size() < 3 || path.compare(path.size() - 3, 3, ".gz") != 0) {
    return std::fopen(path.c_str(), "r");
  }
  std::string quoted = "gzip -dc '";
  for (char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return popen((quoted + "'").c_str(), "r");
}

// Splits `line` in place at commas; returns the number of fields.
inline size_t SplitFields(char* line, char* fields[], size_t max_fields) {
  line[std::strcspn(line, "\r\n")] = '\0';
  size_t n = 0;
  for (char* next = line; next != nullptr && n < max_fields;) {
    fields[n++] = next;
    next = std::strchr(next, ',');
    if (next != nullptr) *next++ = '\0';
  }
  return n;
}

inline void AppendRow(char* const fields[], Trace* trace,
                      std::unordered_map<std::string, uint32_t>* live, uint64_t* live_bytes) {
  const int64_t time_us = ParseTime(fields[1]);
  if (std::strcmp(fields[2], "allocate") == 0) {
    const uint32_t block = static_cast<uint32_t>(trace->block_bytes.size());
    const uint64_t bytes = std::strtoull(fields[4], nullptr, 10);
    const uint16_t stream = static_cast<uint16_t>(std::strtoul(fields[5], nullptr, 10));
    (*live)[fields[3]] = block;
    trace->block_bytes.push_back(bytes);
    trace->block_stream.push_back(stream);
    trace->events.push_back({bytes, block, stream, false});
    *live_bytes += bytes;
    trace->peak_live_bytes = std::max(trace->peak_live_bytes, *live_bytes);
  } else if (std::strcmp(fields[2], "free") == 0) {
    auto it = live->find(fields[3]);
    if (it == live->end()) return;  // allocated before the recording began
    const uint32_t block = it->second;
    live->erase(it);
    trace->events.push_back({trace->block_bytes[block], block, trace->block_stream[block], true});
    *live_bytes -= trace->block_bytes[block];
  } else {
    return;  // the header, and RMM's `allocate failure`
  }
  trace->time_us.push_back(time_us);
}

inline bool ReadTrace(const std::string& path, Trace* trace) {
  FILE* file = OpenTrace(path);
  if (file == nullptr) return false;
  trace->name = BaseName(path);
  std::unordered_map<std::string, uint32_t> live;
  uint64_t live_bytes = 0;
  char line[512];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    char* fields[6];
    if (SplitFields(line, fields, 6) == 6) {
      AppendRow(fields, trace, &live, &live_bytes);
    }
  }
  const bool piped = path.size() > 3 && path.compare(path.size() - 3, 3, ".gz") == 0;
  piped ? pclose(file) : std::fclose(file);
  for (const auto& entry : live) trace->left_live.push_back(entry.second);
  std::sort(trace->left_live.begin(), trace->left_live.end());
  return !trace->events.empty();
}

// -------------------------------------------------------------- the options

struct Options {
  std::vector<std::string> traces;
  uint64_t capacity = uint64_t{24} << 30;  // what the device has
  bool capacity_given = false;             // peers on a real GPU take all of it otherwise
  uint64_t limit = 0;                      // what the allocator may hold; 0: capacity
  int passes = 7;                          // timed ones, the cold one included
  bool find_capacity = false;
  bool memory = true;              // the untimed pass that reads the pool after each event
  std::vector<int> thread_counts;  // for each, the thread workload once over
  int threads = 0;                 // of the workload at hand; 0: a trace is replayed
  int64_t operations = 400000;     // of each thread: an allocate or a free
  int rounds = 5;                  // of the thread workload
  std::string placements;          // where to write `id,offset`
  std::string out;                 // where to write the JSON; empty: stdout
  std::map<std::string, std::string> flags;  // what the peer itself reads

  uint64_t Limit() const { return limit != 0 ? limit : capacity; }
  bool Has(const std::string& name) const { return flags.count(name) != 0; }
  std::string Get(const std::string& name, const std::string& unset) const {
    auto it = flags.find(name);
    return it == flags.end() ? unset : it->second;
  }
};

// "1536", "24GiB", "512MiB", "64KiB".
inline uint64_t ParseSize(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  uint64_t unit = 1;
  if (std::strcmp(end, "KiB") == 0) unit = uint64_t{1} << 10;
  if (std::strcmp(end, "MiB") == 0) unit = uint64_t{1} << 20;
  if (std::strcmp(end, "GiB") == 0) unit = uint64_t{1} << 30;
  // A double holds every whole number of bytes up to 2^53.
  return static_cast<uint64_t>(number * static_cast<double>(unit));
}

constexpr char kUsage[] =
    "usage: %s [flags] TRACE.csv[.gz]...\n"
    "  --capacity=SIZE   what the device has (24GiB)\n"
    "  --limit=SIZE      what the allocator may hold (the capacity)\n"
    "  --passes=N        timed passes over each trace, the cold one included (7)\n"
    "  --find-capacity   also search the smallest capacity that meets every request\n"
    "  --no-memory       leave out the untimed pass that reads the pool\n"
    "  --placements=FILE write id,offset of the one trace given\n"
    "  --threads=N[,M]   also let N threads allocate and free mixed sizes, then M\n"
    "  --operations=N    operations of each thread and round (400000)\n"
    "  --rounds=N        rounds of the thread workload (5)\n"
    "  --out=FILE        the JSON goes there instead of stdout\n"
    "  any other --NAME[=VALUE] is the peer's own: see README.md beside this program\n";

inline void SetOption(const std::string& name, const std::string& value, Options* o) {
  if (name == "capacity")
    o->capacity = ParseSize(value), o->capacity_given = true;
  else if (name == "limit")
    o->limit = ParseSize(value);
  else if (name == "passes")
    o->passes = std::max(1, std::atoi(value.c_str()));
  else if (name == "find-capacity")
    o->find_capacity = true;
  else if (name == "no-memory")
    o->memory = false;
  else if (name == "placements")
    o->placements = value;
  else if (name == "threads")
    for (const char* next = value.c_str(); next != nullptr; next = std::strchr(next, ',')) {
      if (*next == ',') ++next;
      if (std::atoi(next) > 0) o->thread_counts.push_back(std::atoi(next));
    }
  else if (name == "operations")
    o->operations = std::atoll(value.c_str());
  else if (name == "rounds")
    o->rounds = std::max(1, std::atoi(value.c_str()));
  else if (name == "out")
    o->out = value;
  else
    o->flags[name] = value;
}

// False: the usage was printed and the program should end.
inline bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.compare(0, 2, "--") != 0) {
      options->traces.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    SetOption(arg.substr(2, equals == std::string::npos ? equals : equals - 2),
              equals == std::string::npos ? "" : arg.substr(equals + 1), options);
  }
  if (options->Has("help") || (options->traces.empty() && options->thread_counts.empty())) {
    std::fprintf(stderr, kUsage, argv[0]);
    return false;
  }
  return true;
}

// --------------------------------------------------------------- one replay

inline uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// The processor time of this thread: what other programs take does not count.
inline uint64_t ThreadCpuNs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <class Peer>
struct Replay {
  using Block = typename Peer::Block;

  Replay(Peer* allocator, const Trace& events)
      : peer(allocator), trace(events), blocks(events.block_bytes.size(), Peer::kNone) {}

  // Every event in order; `after(i)` follows event i. Returns the failures.
  template <class After>
  uint64_t Pass(After after) {
    uint64_t failures = 0;
    const size_t n = trace.events.size();
    for (size_t i = 0; i < n; ++i) {
      const Event& event = trace.events[i];
      Block& block = blocks[event.block];
      if (!event.is_free) {
        block = peer->Allocate(event.bytes, event.stream);
        if (block == Peer::kNone) ++failures;
      } else if (block != Peer::kNone) {
        peer->Free(block, event.bytes, event.stream);
        block = Peer::kNone;
      }
      after(i);
    }
    return failures;
  }

  void FreeLeftLive() {
    for (uint32_t id : trace.left_live) {
      if (blocks[id] == Peer::kNone) continue;
      peer->Free(blocks[id], trace.block_bytes[id], trace.block_stream[id]);
      blocks[id] = Peer::kNone;
    }
  }

  Peer* peer;
  const Trace& trace;
  std::vector<Block> blocks;
};

struct Result {
  double create_ns = 0;
  double first_ns = 0;          // per event
  std::vector<double> warm_ns;  // per event, one per warm pass
  std::vector<double> warm_cpu_ns;
  uint64_t failures = 0;
  uint64_t peak_pool_bytes = 0;
  double mean_pool_over_live = 0;
  uint64_t needs_bytes = 0;  // 0: not asked for, or none was found
};

template <class Peer>
using Factory = std::function<std::unique_ptr<Peer>(const Options&)>;

template <class Peer>
void TimePasses(const Trace& trace, const Options& options, const Factory<Peer>& make,
                Result* result) {
  const double events = static_cast<double>(trace.events.size());
  uint64_t start = NowNs();
  std::unique_ptr<Peer> peer = make(options);
  result->create_ns = static_cast<double>(NowNs() - start);
  Replay<Peer> replay(peer.get(), trace);
  for (int pass = 0; pass < options.passes; ++pass) {
    const uint64_t cpu_start = ThreadCpuNs();
    start = NowNs();
    const uint64_t failures = replay.Pass([](size_t) {});
    const double ns = static_cast<double>(NowNs() - start) / events;
    const double cpu_ns = static_cast<double>(ThreadCpuNs() - cpu_start) / events;
    replay.FreeLeftLive();
    if (pass == 0) {
      result->first_ns = ns;
      result->failures = failures;
    } else {
      result->warm_ns.push_back(ns);
      result->warm_cpu_ns.push_back(cpu_ns);
    }
  }
}

// The pool over time, on a fresh allocator: reading it costs too much to be timed.
template <class Peer>
void MeasureMemory(const Trace& trace, const Options& options, const Factory<Peer>& make,
                   Result* result) {
  std::unique_ptr<Peer> peer = make(options);
  Replay<Peer> replay(peer.get(), trace);
  uint64_t live = 0;
  double pool_time = 0;
  double live_time = 0;
  replay.Pass([&](size_t i) {
    const Event& event = trace.events[i];
    live = event.is_free ? live - event.bytes : live + event.bytes;
    const uint64_t pool = peer->PoolBytes();
    result->peak_pool_bytes = std::max(result->peak_pool_bytes, pool);
    const int64_t now = trace.time_us[i];
    const int64_t next = i + 1 < trace.time_us.size() ? trace.time_us[i + 1] : now;
    pool_time += static_cast<double>(pool) * static_cast<double>(next - now);
    live_time += static_cast<double>(live) * static_cast<double>(next - now);
  });
  replay.FreeLeftLive();
  result->mean_pool_over_live = live_time > 0 ? pool_time / live_time : 0;
}

template <class Peer>
bool AllMet(const Trace& trace, Options options, uint64_t capacity, const Factory<Peer>& make) {
  options.capacity = capacity;
  options.capacity_given = true;
  options.limit = 0;
  std::unique_ptr<Peer> peer = make(options);
  Replay<Peer> replay(peer.get(), trace);
  const bool met = replay.Pass([](size_t) {}) == 0;
  replay.FreeLeftLive();
  return met;
}

// Bisection on the 2 MiB grid, as if more memory never hurt. It sometimes does
// (best fit is not monotonic), so the answer is checked but may not be the only
// edge between failing and not.
template <class Peer>
uint64_t FindNeeds(const Trace& trace, const Options& options, const Factory<Peer>& make) {
  uint64_t fails = (trace.peak_live_bytes + kGranule - 1) / kGranule;
  if (AllMet<Peer>(trace, options, fails * kGranule, make)) return fails * kGranule;
  uint64_t meets = fails;
  do {
    fails = meets;
    meets = meets + meets / 4 + 1;
    if (meets > fails * 64 || meets * kGranule > (uint64_t{1} << 42)) return 0;
  } while (!AllMet<Peer>(trace, options, meets * kGranule, make));
  while (meets - fails > 1) {
    const uint64_t middle = fails + (meets - fails) / 2;
    (AllMet<Peer>(trace, options, middle * kGranule, make) ? meets : fails) = middle;
  }
  return meets * kGranule;
}

template <class Peer>
bool WritePlacements(const Trace& trace, const Options& options, const Factory<Peer>& make) {
  FILE* file = std::fopen(options.placements.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", options.placements.c_str());
    return false;
  }
  std::unique_ptr<Peer> peer = make(options);
  Replay<Peer> replay(peer.get(), trace);
  std::fprintf(file, "id,offset\n");
  replay.Pass([&](size_t i) {
    const Event& event = trace.events[i];
    if (event.is_free) return;
    const auto block = replay.blocks[event.block];
    if (block == Peer::kNone) {
      std::fprintf(file, "%" PRIu32 ",-1\n", event.block);
    } else {
      std::fprintf(file, "%" PRIu32 ",%" PRIu64 "\n", event.block, peer->Offset(block));
    }
  });
  replay.FreeLeftLive();
  std::fclose(file);
  return true;
}

// -------------------------------------------------------------- the threads

// Each thread keeps 64 blocks of 256 B to 1 MiB (each power of two as likely as
// the next) and replaces one drawn at random again and again. Frees are by the
// thread that allocated.
template <class Peer>
int64_t ThreadWorkload(Peer* peer, uint32_t seed, int64_t operations) {
  struct Slot {
    typename Peer::Block block = Peer::kNone;
    uint64_t bytes = 0;
  };
  Slot slots[64];
  uint32_t state = seed * 2654435761u + 1u;
  int64_t failures = 0;
  for (int64_t i = 0; i < operations / 2; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    Slot& slot = slots[state % 64];
    if (slot.block != Peer::kNone) peer->Free(slot.block, slot.bytes, 0);
    const uint64_t power = uint64_t{256} << ((state >> 6) % 12);
    slot.bytes = power + (state >> 10) % power;
    slot.block = peer->Allocate(slot.bytes, 0);
    if (slot.block == Peer::kNone) ++failures;
  }
  for (Slot& slot : slots) {
    if (slot.block != Peer::kNone) peer->Free(slot.block, slot.bytes, 0);
  }
  return failures;
}

// Operations per second of all threads together, from the first start to the
// last end.
template <class Peer>
double ThreadRound(Peer* peer, const Options& options, int64_t* failures) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<int64_t> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      Peer::EnterThread();
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      failed.fetch_add(ThreadWorkload(peer, static_cast<uint32_t>(t + 1), options.operations));
    });
  }
  while (ready.load() < options.threads) std::this_thread::yield();
  const uint64_t start = NowNs();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(NowNs() - start) / 1e9;
  *failures += failed.load();
  return static_cast<double>(options.operations) * options.threads / seconds;
}

template <class Peer>
std::string RunThreads(const std::string& name, const Options& options, const Factory<Peer>& make) {
  std::unique_ptr<Peer> peer = make(options);
  int64_t failures = 0;
  std::vector<double> rates;
  ThreadRound(peer.get(), options, &failures);  // warms up
  for (int round = 0; round < options.rounds; ++round) {
    rates.push_back(ThreadRound(peer.get(), options, &failures));
  }
  char text[512];
  std::snprintf(text, sizeof text,
                "  {\"peer\": \"%s\", \"workload\": \"own\", \"threads\": %d, "
                "\"operations_per_second\": %.0f, \"operations_per_second_min\": "
                "%.0f, \"operations_per_second_max\": %.0f, \"failures\": %" PRId64 "}",
                name.c_str(), options.threads, Median(rates),
                *std::min_element(rates.begin(), rates.end()),
                *std::max_element(rates.begin(), rates.end()), failures);
  return text;
}

// ------------------------------------------------------------------ the JSON

inline std::string ToJson(const std::string& name, const Trace& trace, const Options& options,
                          const Result& r) {
  char text[1024];
  const double live = static_cast<double>(trace.peak_live_bytes);
  const std::vector<double> warm = r.warm_ns.empty() ? std::vector<double>{r.first_ns} : r.warm_ns;
  int n = std::snprintf(
      text, sizeof text,
      "  {\"peer\": \"%s\", \"trace\": \"%s\", \"events\": %zu, \"passes\": %d, "
      "\"create_ns\": %.0f, \"first_ns_per_event\": %.2f, \"warm_ns_per_event\": "
      "%.2f, \"warm_ns_per_event_min\": %.2f, \"warm_ns_per_event_max\": %.2f, "
      "\"failures\": %" PRIu64 ", \"peak_live_bytes\": %" PRIu64,
      name.c_str(), trace.name.c_str(), trace.events.size(), options.passes, r.create_ns,
      r.first_ns, Median(warm), *std::min_element(warm.begin(), warm.end()),
      *std::max_element(warm.begin(), warm.end()), r.failures, trace.peak_live_bytes);
  std::string json(text, static_cast<size_t>(n));
  if (!r.warm_cpu_ns.empty()) {
    n = std::snprintf(
        text, sizeof text, ", \"warm_cpu_ns_per_event\": %.2f, \"warm_cpu_ns_per_event_min\": %.2f",
        Median(r.warm_cpu_ns), *std::min_element(r.warm_cpu_ns.begin(), r.warm_cpu_ns.end()));
    json.append(text, static_cast<size_t>(n));
  }
  if (options.memory) {
    n = std::snprintf(text, sizeof text,
                      ", \"peak_pool_bytes\": %" PRIu64
                      ", \"pool_over_live\": %.4f, \"mean_pool_over_live\": %.4f",
                      r.peak_pool_bytes, static_cast<double>(r.peak_pool_bytes) / live,
                      r.mean_pool_over_live);
    json.append(text, static_cast<size_t>(n));
  }
  if (r.needs_bytes != 0) {
    n = std::snprintf(text, sizeof text,
                      ", \"needs_bytes\": %" PRIu64 ", \"needs_over_live\": %.4f", r.needs_bytes,
                      static_cast<double>(r.needs_bytes) / live);
    json.append(text, static_cast<size_t>(n));
  }
  return json + "}";
}

inline bool WriteJson(const std::vector<std::string>& objects, const std::string& path) {
  FILE* file = path.empty() ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return false;
  }
  std::fprintf(file, "[\n");
  for (size_t i = 0; i < objects.size(); ++i) {
    std::fprintf(file, "%s%s\n", objects[i].c_str(), i + 1 < objects.size() ? "," : "");
  }
  std::fprintf(file, "]\n");
  return path.empty() || std::fclose(file) == 0;
}

template <class Peer>
bool RunTrace(const std::string& path, const std::string& name, const Options& options,
              const Factory<Peer>& make, std::string* json) {
  Trace trace;
  if (!ReadTrace(path, &trace)) {
    std::fprintf(stderr, "%s holds no trace that can be read\n", path.c_str());
    return false;
  }
  Result result;
  TimePasses<Peer>(trace, options, make, &result);
  if (options.memory) MeasureMemory<Peer>(trace, options, make, &result);
  if (options.find_capacity) result.needs_bytes = FindNeeds<Peer>(trace, options, make);
  *json = ToJson(name, trace, options, result);
  return options.placements.empty() || WritePlacements<Peer>(trace, options, make);
}

// The file is written anew after each result, so that a run which is cut short
// leaves what it had. Exit codes: 0 all was measured, 1 a trace or a file could not
// be used, 2 usage, 3 there is nothing to run on.
template <class Peer>
int RunPeer(const Options& options, const std::string& name, const Factory<Peer>& make) {
  std::vector<std::string> objects;
  bool ok = true;
  const auto add = [&](const std::string& object) {
    objects.push_back(object);
    if (!options.out.empty()) ok = WriteJson(objects, options.out) && ok;
  };
  for (const std::string& path : options.traces) {
    std::string json;
    if (RunTrace<Peer>(path, name, options, make, &json)) {
      add(json);
    } else {
      ok = false;
    }
  }
  for (int threads : options.thread_counts) {
    Options with_threads = options;
    with_threads.threads = threads;
    add(RunThreads<Peer>(name, with_threads, make));
  }
  if (options.out.empty()) ok = WriteJson(objects, "") && ok;
  return ok ? 0 : 1;
}

}  // namespace hbm_peers

#endif  // HBMALLOC_BENCH_PEERS_PEER_HARNESS_H_
