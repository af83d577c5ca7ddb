// SPDX-License-Identifier: Apache-2.0
//
// File: device.h
//
// A Device is a GPU, or a stand-in for one, that memory comes from. OpenDevice
// finds it by name; MakeAllocator (allocator.h) takes it from there.
//
//   auto device = hbm::OpenDevice("cuda:0");          // a GPU
//   auto device = hbm::OpenDevice("host");            // real memory, no GPU
//   auto device = hbm::OpenDevice("sim:80GiB");       // addresses and costs only
#ifndef HBMALLOC_DEVICE_H_
#define HBMALLOC_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/policy.h"

namespace hbm {

// The clock of a simulated device: work and idle times are measured on it, and
// it moves only when it is told to. Thread-safe.
class SimulatedClock {
 public:
  virtual ~SimulatedClock() = default;
  // Time since the device was opened.
  virtual absl::Duration Now() const = 0;
  // Moves the clock forward to `now`; a time in the past changes nothing.
  virtual void AdvanceTo(absl::Duration now) = 0;

  // Has `alarm` called at the end of every AdvanceTo, on that thread and under no lock
  // of an allocator, as a timer would be on a real device: `idle_release` is served so.
  // RemoveAlarm waits until it has returned. A clock without alarms answers 0.
  virtual std::uint64_t AddAlarm(std::function<void()> /*alarm*/) { return 0; }
  virtual void RemoveAlarm(std::uint64_t /*id*/) {}
};

// Thread-safe. Allocators keep the device they were made on alive.
class Device {
 public:
  virtual ~Device() = default;

  // A spec that OpenDevice takes, in its canonical form: "cuda:0", "sim:80GiB".
  virtual std::string_view Name() const = 0;

  // Identifies the physical device across processes and renumbering: a GPU's or
  // MIG instance's UUID; for stand-ins, a name of this process's own, or the shared one.
  virtual std::string_view Uuid() const = 0;

  // Total and free bytes now. Calls the driver.
  virtual absl::StatusOr<MemoryInfo> GetMemoryInfo() = 0;

  // A new source of memory of the given kind, held by one allocator.
  // `options` says what kind of memory and how it may be shared.
  virtual absl::StatusOr<std::shared_ptr<MemorySource>> MakeSource(const Policy& policy) = 0;

  // Null unless the device is simulated.
  virtual SimulatedClock* simulated_clock() { return nullptr; }

  // Whether this is a CUDA device (then stream_mode defaults to ordered).
  virtual bool IsCuda() const { return false; }
};

// Finds a device by spec.
//
//   sim:SIZE[,OPTION...]   a simulated device: addresses only, a capacity, and a
//                          cost model that adds up what a driver would have
//                          charged. SIZE is a capacity (80GiB) or h200. Options:
//                          used=SIZE (held by others), lag=DURATION (work on a
//                          freed block ends that much later on the simulated
//                          clock), context=SIZE (charged per allocator process),
//                          shared=NAME (one capacity for all processes that open
//                          that name). `sim` alone is sim:h200.
//   host[:SIZE][,shared=NAME]
//                          real memory of this machine through mmap, up to SIZE
//                          (default: the machine's memory).
//   cuda:N, cuda:UUID, cuda:PCI bus id, cuda:MIG-UUID
//                          a GPU. A bare UUID (GPU-...) or MIG UUID is understood
//                          too. One object per physical device: opening it twice
//                          gives the same one.
//
// InvalidArgument: the spec is not of these forms (the message says where).
// Unavailable: no CUDA driver on this machine, or the library was built without
// CUDA. NotFound: no such GPU. Does not allocate device memory.
absl::StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view spec);

}  // namespace hbm

#endif  // HBMALLOC_DEVICE_H_
