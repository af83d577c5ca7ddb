// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/cuda_source.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"
#include "sources/cuda/driver_pool.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

// What cuMemAlloc aligns to at least.
constexpr std::size_t kDriverAlignment = 256;

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
void* PointerTo(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// A device that may access the memory of `gpu`.
absl::StatusOr<CUdevice> FindPeer(const Gpu& gpu, int ordinal) {
  int count = 0;
  if (gpu.driver.DeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
  CUdevice peer = 0;
  if (ordinal < 0 || ordinal >= count || gpu.driver.DeviceGet(&peer, ordinal) != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat("peers: there is no device ", ordinal,
                                                   "; this process sees ", count, " devices"));
  }
  if (peer == gpu.device) return peer;
  int can = 0;
  const CUresult result = gpu.driver.DeviceCanAccessPeer(&can, peer, gpu.device);
  if (result != CUDA_SUCCESS || can == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("peers: device ", ordinal, " cannot access the memory of ", gpu.name));
  }
  return peer;
}

absl::StatusOr<MemoryPlacement> Place(const Gpu& gpu, const Policy& policy) {
  MemoryPlacement placement{gpu.device, {}, policy.exportable};
  for (const int ordinal : policy.peers) {
    const absl::StatusOr<CUdevice> peer = FindPeer(gpu, ordinal);
    if (!peer.ok()) return peer.status();
    // Its own device is passed over, so that one list serves every device.
    if (*peer != gpu.device) placement.peers.push_back(*peer);
  }
  return placement;
}

std::string SourceName(MemoryKind kind, bool mapped, std::string_view device) {
  const char* how = mapped ? "virtual memory" : "cudaMalloc";
  if (kind == MemoryKind::kUnified) how = "cudaMallocManaged";
  if (kind == MemoryKind::kPinnedHost) how = "cudaHostAlloc";
  return absl::StrCat(how, " on ", absl::string_view(device.data(), device.size()));
}

}  // namespace

absl::StatusOr<MemoryInfo> Gpu::GetMemoryInfo() {
  const DriverScope scope(&context);
  if (!scope.status().ok()) return scope.status();
  MemoryInfo info;
  const CUresult result = driver.MemGetInfo(&info.free, &info.total);
  if (result != CUDA_SUCCESS) return ToStatus(driver, result, "cuMemGetInfo", name);
  info.free = std::min(info.free, info.total);
  return info;
}

absl::StatusOr<std::shared_ptr<MemorySource>> CudaSource::Make(std::shared_ptr<Gpu> gpu,
                                                               const Policy& policy) {
  absl::StatusOr<MemoryPlacement> placement = Place(*gpu, policy);
  if (!placement.ok()) return placement.status();
  const DriverScope scope(&gpu->context);
  if (!scope.status().ok()) return scope.status();
  const CUmemAllocationProp properties = placement->Properties();
  std::size_t granularity = 0;
  const CUresult result = gpu->driver.MemGetAllocationGranularity(
      &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS) {
    return ToStatus(gpu->driver, result, "cuMemGetAllocationGranularity", gpu->name);
  }
  if (granularity < kDriverAlignment || (granularity & (granularity - 1)) != 0) {
    return absl::InternalError(absl::StrCat("cuMemGetAllocationGranularity of ", gpu->name,
                                            " says ", granularity, ", not a power of two"));
  }
  return std::shared_ptr<MemorySource>(
      new CudaSource(std::move(gpu), policy, *std::move(placement), granularity));
}

CudaSource::CudaSource(std::shared_ptr<Gpu> gpu, const Policy& policy, MemoryPlacement placement,
                       std::size_t granularity)
    : gpu_(std::move(gpu)),
      driver_(gpu_->driver),
      kind_(policy.memory_kind),
      placement_(std::move(placement)),
      mapped_regions_(kind_ == MemoryKind::kDevice &&
                      (!placement_.peers.empty() || placement_.exportable)),
      granularity_(granularity),
      name_(SourceName(kind_, mapped_regions_, gpu_->name)),
      memory_(&gpu_->context, placement_, granularity, &meter_) {}

CudaSource::~CudaSource() {
  for (const auto& [address, held] : ranges_) {
    // Once more, in case the first failure was a passing one.
    if (!GiveBack(held).ok()) GiveBack(held).IgnoreError();
  }
}

absl::StatusOr<MemoryInfo> CudaSource::GetMemoryInfo() {
  if (kind_ != MemoryKind::kPinnedHost) return gpu_->GetMemoryInfo();
  const auto page = static_cast<std::size_t>(std::max(0L, sysconf(_SC_PAGE_SIZE)));
  return MemoryInfo{static_cast<std::size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) * page,
                    static_cast<std::size_t>(std::max(0L, sysconf(_SC_AVPHYS_PAGES))) * page};
}

absl::Status CudaSource::AddPeer(int ordinal) {
  const DriverScope scope(&gpu_->context);
  if (!scope.status().ok()) return scope.status();
  const absl::StatusOr<CUdevice> peer = FindPeer(*gpu_, ordinal);
  if (!peer.ok()) return peer.status();
  // The other kinds are everybody's.
  if (*peer == gpu_->device || kind_ != MemoryKind::kDevice) return absl::OkStatus();
  if (!ranges_.empty()) {
    return absl::UnimplementedError(
        "AddPeer: memory that cudaMalloc gave is held already, and only the program as a whole "
        "can open that to a peer (cuCtxEnablePeerAccess); name the peer in the policy, or use "
        "elastic");
  }
  absl::Status added = memory_.AddPeer(*peer);
  if (added.ok()) mapped_regions_ = true;
  return added;
}

absl::StatusOr<std::uintptr_t> CudaSource::Take(std::size_t bytes) {
  const DriverScope scope(&gpu_->context);
  if (!scope.status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  CUdeviceptr address = 0;
  void* host = nullptr;
  CUresult result = CUDA_SUCCESS;
  switch (kind_) {
    case MemoryKind::kDevice:
      result = driver_.MemAlloc(&address, bytes);
      break;
    case MemoryKind::kUnified:
      result = driver_.MemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
      break;
    case MemoryKind::kPinnedHost:
      result = driver_.MemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE);
      address = AddressOf(host);
      break;
  }
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, name_, policy::FormatBytes(bytes));
  held_.fetch_add(bytes, std::memory_order_relaxed);
  return std::uintptr_t{address};
}

absl::Status CudaSource::GiveBack(const Held& held) {
  const DriverScope scope(&gpu_->context);
  if (!scope.release_status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  const bool pinned = kind_ == MemoryKind::kPinnedHost;
  const CUresult result =
      pinned ? driver_.MemFreeHost(PointerTo(held.base)) : driver_.MemFree(held.base);
  absl::Status freed = ReleaseStatus(driver_, result, pinned ? "cuMemFreeHost" : "cuMemFree",
                                     policy::FormatBytes(held.bytes));
  if (freed.ok()) held_.fetch_sub(held.bytes, std::memory_order_relaxed);
  return freed;
}

absl::StatusOr<MemoryRange> CudaSource::AllocateRegion(std::size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a region of 0 bytes was asked for");
  if (bytes > std::size_t{1} << 46) {  // rounding up could overflow
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": ", bytes, " bytes asked for, more than there can be"));
  }
  bytes = (bytes + granularity_ - 1) / granularity_ * granularity_;
  if (mapped_regions_) return memory_.AllocateMapped(bytes);
  const absl::StatusOr<std::uintptr_t> address = Take(bytes);
  if (!address.ok()) return address.status();
  ranges_[*address] = Held{*address, bytes};
  return MemoryRange{PointerTo(*address), bytes};
}

absl::Status CudaSource::ReleaseRegion(MemoryRange region) {
  if (mapped_regions_) return memory_.FreeMapped(region);
  const auto found = ranges_.find(AddressOf(region.address));
  if (found == ranges_.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "releasing %p: not a region of this source, or released already", region.address));
  }
  absl::Status freed = GiveBack(found->second);
  if (freed.ok()) ranges_.erase(found);
  return freed;
}

absl::StatusOr<MemoryRange> CudaSource::AllocateBlock(std::size_t bytes, std::size_t alignment) {
  if (mapped_regions_ || bytes == 0 || bytes > std::size_t{1} << 46) return AllocateRegion(bytes);
  // The driver aligns large allocations well; where it does not, a larger one holds
  // an aligned block.
  for (const std::size_t spare : {std::size_t{0}, alignment}) {
    const std::size_t asked = bytes + spare;
    const absl::StatusOr<std::uintptr_t> base = Take(asked);
    if (!base.ok()) return base.status();
    const std::uintptr_t address = (*base + alignment - 1) / alignment * alignment;
    const Held held{*base, asked};
    if (address - *base <= spare) {
      ranges_[address] = held;
      return MemoryRange{PointerTo(address), bytes};
    }
    // Not put into the books: the aligned address may lie in another's block.
    if (absl::Status freed = GiveBack(held); !freed.ok()) return freed;
  }
  return absl::InternalError("no aligned block inside a larger one");
}

absl::Status CudaSource::ReleaseBlock(MemoryRange block) { return ReleaseRegion(block); }

absl::StatusOr<std::unique_ptr<StreamOrderedPool>> CudaSource::MakePool(
    const PoolOptions& options) {
  if (kind_ != MemoryKind::kDevice) {
    return absl::InvalidArgumentError("memory_kind: cuda_async serves device memory only");
  }
  return DriverPool::Make(&gpu_->context, placement_, options, &meter_);
}

}  // namespace hbm::sources::cuda
