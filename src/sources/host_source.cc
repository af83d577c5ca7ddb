// SPDX-License-Identifier: Apache-2.0
#include "sources/host_source.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"

namespace hbm::sources {
namespace {

constexpr std::size_t kGranule = kHostGranuleBytes;

std::size_t PageBytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  return bytes;
}

absl::Status SystemError(const char* call, std::size_t bytes) {
  const int error = errno;
  const std::string text =
      absl::StrCat(call, " of ", policy::FormatBytes(bytes), ": ", std::strerror(error));
  return error == ENOMEM ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

// Anonymous memory at a multiple of `alignment`, a power of two: maps more and
// cuts both ends.
absl::StatusOr<void*> MapAligned(std::size_t bytes, std::size_t alignment, int protection) {
  const std::size_t spare = alignment > PageBytes() ? alignment : 0;
  const std::size_t mapped = bytes + spare;
  void* const raw =
      mmap(nullptr, mapped, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return SystemError("mmap", mapped);
  char* const begin = static_cast<char*>(raw);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(raw) & (alignment - 1);
  const std::size_t head = past == 0 ? 0 : alignment - past;
  if (head != 0) munmap(begin, head);
  if (spare != head) munmap(begin + head + bytes, spare - head);
  return static_cast<void*>(begin + head);
}

}  // namespace

class HostSource::Mapper final : public VirtualMemory {
 public:
  explicit Mapper(HostSource* source) : source_(*source) {}

  ~Mapper() override {
    for (const auto& [start, bytes] : table_.reservations()) {
      munmap(reinterpret_cast<void*>(start), bytes);
    }
  }

  std::size_t Granularity() const override { return kGranule; }

  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override {
    if (absl::Status size = table_.CheckSize(bytes); !size.ok()) return size;
    if (bytes > kMaxReservation) {
      return absl::ResourceExhaustedError(
          absl::StrCat("host: no addresses for ", policy::FormatBytes(bytes)));
    }
    DriverMeter::Timer timer(source_.meter_);
    const absl::StatusOr<void*> start = MapAligned(bytes, kGranule, PROT_NONE);
    if (!start.ok()) return start.status();
    const MemoryRange range{*start, bytes};
    table_.AddReservation(range);
    return range;
  }

  absl::Status FreeReservation(MemoryRange range) override {
    DriverMeter::Timer timer(source_.meter_);
    if (absl::Status removed = table_.RemoveReservation(range); !removed.ok()) return removed;
    if (munmap(range.address, range.bytes) == 0) return absl::OkStatus();
    const absl::Status failed = SystemError("munmap", range.bytes);
    table_.AddReservation(range);
    return failed;
  }

  absl::StatusOr<Handle> Create(std::size_t bytes) override {
    if (absl::Status size = table_.CheckSize(bytes); !size.ok()) return size;
    if (absl::Status taken = source_.Take(bytes); !taken.ok()) return taken;
    DriverMeter::Timer timer(source_.meter_);
    return table_.AddHandle(bytes);
  }

  absl::Status Release(Handle handle) override {
    DriverMeter::Timer timer(source_.meter_);
    const absl::StatusOr<std::size_t> bytes = table_.RemoveHandle(handle);
    if (!bytes.ok()) return bytes.status();
    source_.Return(*bytes);
    return absl::OkStatus();
  }

  absl::Status Map(void* address, Handle handle) override {
    DriverMeter::Timer timer(source_.meter_);
    return table_.Map(address, handle).status();
  }

  absl::Status SetAccess(MemoryRange range) override {
    DriverMeter::Timer timer(source_.meter_);
    if (absl::Status mapped = table_.HandlesIn(range).status(); !mapped.ok()) return mapped;
    if (mprotect(range.address, range.bytes, PROT_READ | PROT_WRITE) == 0) return absl::OkStatus();
    return SystemError("mprotect", range.bytes);
  }

  absl::Status Unmap(MemoryRange range) override {
    DriverMeter::Timer timer(source_.meter_);
    if (absl::Status mapped = table_.HandlesIn(range).status(); !mapped.ok()) return mapped;
    // Taking the access away comes first: if it fails, nothing is lost yet.
    if (mprotect(range.address, range.bytes, PROT_NONE) != 0) {
      return SystemError("mprotect", range.bytes);
    }
    if (madvise(range.address, range.bytes, MADV_DONTNEED) != 0) {
      const absl::Status failed = SystemError("madvise", range.bytes);
      mprotect(range.address, range.bytes, PROT_READ | PROT_WRITE);
      return failed;
    }
    table_.Unmap(range);
    return absl::OkStatus();
  }

 private:
  static constexpr std::size_t kMaxReservation = std::size_t{1} << 46;

  HostSource& source_;
  MappingTable table_{kGranule};
};

HostSource::HostSource(std::shared_ptr<Capacity> capacity)
    : capacity_(std::move(capacity)), mapper_(std::make_unique<Mapper>(this)) {}

HostSource::~HostSource() {
  for (const auto& [address, bytes] : ranges_) munmap(address, bytes);
  capacity_->Return(HeldBytes());
}

VirtualMemory* HostSource::virtual_memory() { return mapper_.get(); }

absl::StatusOr<MemoryInfo> HostSource::GetMemoryInfo() {
  return MemoryInfo{capacity_->total(), capacity_->available()};
}

absl::Status HostSource::Take(std::size_t bytes) {
  if (!capacity_->TryTake(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host: ", policy::FormatBytes(bytes), " asked for, ",
                     policy::FormatBytes(capacity_->available()), " of the capacity are free"));
  }
  held_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

void HostSource::Return(std::size_t bytes) {
  capacity_->Return(bytes);
  held_.fetch_sub(bytes, std::memory_order_relaxed);
}

absl::StatusOr<MemoryRange> HostSource::TakeRange(std::size_t bytes, std::size_t unit,
                                                  std::size_t alignment) {
  if (bytes == 0) return absl::InvalidArgumentError("a region of 0 bytes was asked for");
  if (bytes > capacity_->total()) {  // rounding up could overflow
    return absl::ResourceExhaustedError(
        absl::StrCat("host: ", bytes, " bytes asked for, more than there are"));
  }
  bytes = (bytes + unit - 1) / unit * unit;
  if (absl::Status taken = Take(bytes); !taken.ok()) return taken;
  DriverMeter::Timer timer(meter_);
  const absl::StatusOr<void*> start = MapAligned(bytes, alignment, PROT_READ | PROT_WRITE);
  if (!start.ok()) {
    Return(bytes);
    return start.status();
  }
  ranges_[*start] = bytes;
  return MemoryRange{*start, bytes};
}

absl::StatusOr<MemoryRange> HostSource::AllocateRegion(std::size_t bytes) {
  return TakeRange(bytes, kGranule, kGranule);
}

absl::StatusOr<MemoryRange> HostSource::AllocateBlock(std::size_t bytes, std::size_t alignment) {
  if (alignment > kGranule) {
    return absl::InvalidArgumentError(
        absl::StrCat("alignment: ", alignment, " is over the most a source gives, ", kGranule));
  }
  return TakeRange(bytes, PageBytes(), std::max(alignment, PageBytes()));
}

absl::Status HostSource::ReleaseRegion(MemoryRange region) {
  const auto found = ranges_.find(region.address);
  if (found == ranges_.end() || found->second != region.bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "releasing %p, %d bytes: not a region as this source gave it, or released already",
        region.address, region.bytes));
  }
  DriverMeter::Timer timer(meter_);
  if (munmap(region.address, region.bytes) != 0) return SystemError("munmap", region.bytes);
  ranges_.erase(found);
  Return(region.bytes);
  return absl::OkStatus();
}

}  // namespace hbm::sources
