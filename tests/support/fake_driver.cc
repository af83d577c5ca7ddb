// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver.h"

#if defined(HBMALLOC_HAVE_CUDA)

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace hbm::testing {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;
FakeDriver* g_fake = nullptr;

// One context for each device.
CUcontext ContextOf(int device) {
  return reinterpret_cast<CUcontext>(std::uintptr_t{0xC0} + static_cast<std::uintptr_t>(device));
}
std::uintptr_t Bits(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

// The table's functions.
struct FakeCalls {
#define ENTER(name)           \
  FakeDriver& fake = *g_fake; \
  if (const CUresult entered = fake.Enter(#name); entered != CUDA_SUCCESS) return entered

  static CUresult Init(unsigned) {
    ENTER(Init);
    return CUDA_SUCCESS;
  }
  static CUresult GetErrorName(CUresult, const char** text) {
    *text = "FAKE_ERROR";
    return CUDA_SUCCESS;
  }
  static CUresult GetErrorString(CUresult, const char** text) {
    *text = "an error of the model";
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGet(CUdevice* device, int ordinal) {
    ENTER(DeviceGet);
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetCount(int* count) {
    ENTER(DeviceGetCount);
    *count = 2;
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetName(char* name, int bytes, CUdevice) {
    ENTER(DeviceGetName);
    std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
    ENTER(DeviceGetUuid);
    std::memset(uuid->bytes, 0x10 + device, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetByPCIBusId(CUdevice* device, const char* bus_id) {
    ENTER(DeviceGetByPCIBusId);
    if (std::strcmp(bus_id, "0000:65:00.0") != 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = 1;
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
    ENTER(DeviceGetAttribute);
    *value = 1;
    return CUDA_SUCCESS;
  }
  static CUresult DeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
    ENTER(DeviceCanAccessPeer);
    *can = 1;
    return CUDA_SUCCESS;
  }
  static CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER(DevicePrimaryCtxRetain);
    ++fake.contexts_;
    *context = ContextOf(device);
    return CUDA_SUCCESS;
  }
  static CUresult DevicePrimaryCtxRelease(CUdevice) {
    ENTER(DevicePrimaryCtxRelease);
    --fake.contexts_;
    return CUDA_SUCCESS;
  }
  static CUresult CtxGetCurrent(CUcontext* context) {
    ENTER(CtxGetCurrent);
    *context = fake.current_;
    return CUDA_SUCCESS;
  }
  static CUresult CtxSetCurrent(CUcontext context) {
    ENTER(CtxSetCurrent);
    fake.current_ = context;
    return CUDA_SUCCESS;
  }
  static CUresult CtxPushCurrent(CUcontext context) {
    ENTER(CtxPushCurrent);
    fake.pushed_.push_back(fake.current_);
    fake.current_ = context;
    return CUDA_SUCCESS;
  }
  static CUresult CtxPopCurrent(CUcontext* context) {
    ENTER(CtxPopCurrent);
    *context = fake.current_;
    fake.current_ = fake.pushed_.back();
    fake.pushed_.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult CtxSynchronize() {
    ENTER(CtxSynchronize);
    std::set<std::uint64_t> living;
    for (auto& [handle, stream] : fake.streams_) {
      living.insert(stream.id);
      if (stream.device != fake.CurrentDevice()) continue;
      if (stream.capturing) ++fake.spoilt_captures_;
      std::uint64_t& done = fake.done_[stream.id];
      done = std::max(done, stream.clock[stream.id]);
    }
    // Of streams that are gone, too.
    for (const auto& [id, device] : fake.stream_device_) {
      if (device == fake.CurrentDevice() && living.count(id) == 0)
        fake.done_[id] = ~std::uint64_t{0} / 2;
    }
    return CUDA_SUCCESS;
  }
  static CUresult MemGetInfo(std::size_t* free, std::size_t* total) {
    ENTER(MemGetInfo);
    *total = fake.total_;
    *free = fake.total_ - std::min(fake.total_, fake.used_ + fake.others_);
    return CUDA_SUCCESS;
  }
  static CUresult Give(CUdeviceptr* address, std::size_t bytes) {
    FakeDriver& fake = *g_fake;
    if (!fake.Take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake.next_allocation_ != 0) {
      *address = std::exchange(fake.next_allocation_, 0);
    } else {
      *address = fake.next_address_;
      fake.next_address_ += (bytes + kGranule - 1) / kGranule * kGranule + kGranule;
    }
    fake.allocations_[*address] = bytes;
    fake.device_of_[*address] = fake.CurrentDevice();
    return CUDA_SUCCESS;
  }
  static CUresult MemAlloc(CUdeviceptr* address, std::size_t bytes) {
    ENTER(MemAlloc);
    (void)fake;
    return Give(address, bytes);
  }
  static CUresult MemFree(CUdeviceptr address) {
    ENTER(MemFree);
    const auto found = fake.allocations_.find(address);
    if (found == fake.allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
    // It waits for all work that is queued.
    for (auto& [handle, stream] : fake.streams_) {
      std::uint64_t& done = fake.done_[stream.id];
      done = std::max(done, stream.clock[stream.id]);
    }
    fake.used_ -= found->second;
    fake.allocations_.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult MemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned) {
    ENTER(MemAllocManaged);
    (void)fake;
    return Give(address, bytes);
  }
  static CUresult MemHostAlloc(void** address, std::size_t bytes, unsigned) {
    ENTER(MemHostAlloc);
    (void)fake;
    CUdeviceptr given = 0;
    const CUresult result = Give(&given, bytes);
    *address = reinterpret_cast<void*>(given);
    return result;
  }
  static CUresult MemFreeHost(void* address) {
    ENTER(MemFreeHost);
    const auto found = fake.allocations_.find(Bits(address));
    if (found == fake.allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
    fake.used_ -= found->second;
    fake.allocations_.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult MemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
    ENTER(MemGetAllocationGranularity);
    *bytes = kGranule;
    return CUDA_SUCCESS;
  }
  static CUresult MemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t,
                                    CUdeviceptr, unsigned long long) {
    ENTER(MemAddressReserve);
    *address = fake.next_address_;
    fake.next_address_ += bytes + kGranule;
    fake.reservations_[*address] = bytes;
    return CUDA_SUCCESS;
  }
  static CUresult MemAddressFree(CUdeviceptr address, std::size_t) {
    ENTER(MemAddressFree);
    return fake.reservations_.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult MemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long) {
    ENTER(MemCreate);
    if (!fake.Take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = fake.next_handle_++;
    fake.handles_[*handle] = bytes;
    fake.handle_device_[*handle] = properties->location.id;
    return CUDA_SUCCESS;
  }
  static CUresult MemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(MemRelease);
    const auto found = fake.handles_.find(handle);
    if (found == fake.handles_.end()) return CUDA_ERROR_INVALID_VALUE;
    fake.used_ -= found->second;
    fake.handles_.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult MemMap(CUdeviceptr address, std::size_t bytes, std::size_t,
                         CUmemGenericAllocationHandle handle, unsigned long long) {
    ENTER(MemMap);
    fake.mappings_[address] = bytes;
    fake.device_of_[address] = fake.handle_device_[handle];
    return CUDA_SUCCESS;
  }
  static CUresult MemUnmap(CUdeviceptr address, std::size_t bytes) {
    ENTER(MemUnmap);
    auto first = fake.mappings_.lower_bound(address);
    const auto last = fake.mappings_.lower_bound(address + bytes);
    if (first == last) return CUDA_ERROR_INVALID_VALUE;
    fake.mappings_.erase(first, last);
    return CUDA_SUCCESS;
  }
  static CUresult MemSetAccess(CUdeviceptr address, std::size_t bytes,
                               const CUmemAccessDesc* access, std::size_t count) {
    ENTER(MemSetAccess);
    for (auto it = fake.mappings_.lower_bound(address);
         it != fake.mappings_.end() && it->first < address + bytes; ++it) {
      for (std::size_t i = 0; i < count; ++i) {
        if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
          fake.access_[it->first].erase(access[i].location.id);
        } else {
          fake.access_[it->first].insert(access[i].location.id);
        }
      }
    }
    return CUDA_SUCCESS;
  }
  static CUresult MemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    ENTER(MemPoolCreate);
    const std::uintptr_t made = fake.next_handle_++;
    fake.pools_.insert(made);
    fake.pool_limit_ = properties->maxSize;
    *pool = reinterpret_cast<CUmemoryPool>(made);
    return CUDA_SUCCESS;
  }
  static CUresult MemPoolDestroy(CUmemoryPool pool) {
    ENTER(MemPoolDestroy);
    return fake.pools_.erase(Bits(pool)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult MemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
    ENTER(MemPoolSetAttribute);
    return CUDA_SUCCESS;
  }
  static CUresult MemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void* value) {
    ENTER(MemPoolGetAttribute);
    const cuuint64_t used =
        (fake.pool_used_ + fake.pool_step_ - 1) / fake.pool_step_ * fake.pool_step_;
    std::memcpy(value, &used, sizeof(used));
    return CUDA_SUCCESS;
  }
  static CUresult MemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc*, std::size_t) {
    ENTER(MemPoolSetAccess);
    return CUDA_SUCCESS;
  }
  static CUresult MemPoolTrimTo(CUmemoryPool, std::size_t) {
    ENTER(MemPoolTrimTo);
    return CUDA_SUCCESS;
  }
  // In a capture they become nodes of the graph, so a captured stream may have them.
  static CUresult RefuseOnLegacy(CUstream handle) {
    const FakeDriver::Stream* const stream = g_fake->Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return g_fake->IsLegacyBesideACapture(*stream) ? g_fake->Refuse(*stream) : CUDA_SUCCESS;
  }
  static CUresult MemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool,
                                        CUstream handle) {
    ENTER(MemAllocFromPoolAsync);
    if (const CUresult refused = RefuseOnLegacy(handle); refused != CUDA_SUCCESS) return refused;
    if (fake.pool_limit_ != 0 && fake.pool_used_ + bytes > fake.pool_limit_) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!fake.Take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = fake.next_address_;
    fake.next_address_ += (bytes + kGranule - 1) / kGranule * kGranule;
    fake.pool_blocks_[*address] = bytes;
    fake.pool_used_ += bytes;
    return CUDA_SUCCESS;
  }
  static CUresult MemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTER(MemFreeAsync);
    if (const CUresult refused = RefuseOnLegacy(handle); refused != CUDA_SUCCESS) return refused;
    const auto found = fake.pool_blocks_.find(address);
    if (found == fake.pool_blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
    fake.used_ -= found->second;
    fake.pool_used_ -= found->second;
    fake.pool_blocks_.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult EventCreate(CUevent* event, unsigned) {
    ENTER(EventCreate);
    const std::uintptr_t made = fake.next_handle_++;
    fake.events_[made] = {};
    fake.event_device_[made] = fake.CurrentDevice();
    *event = reinterpret_cast<CUevent>(made);
    return CUDA_SUCCESS;
  }
  static CUresult EventDestroy(CUevent event) {
    ENTER(EventDestroy);
    return fake.events_.erase(Bits(event)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  static CUresult EventRecord(CUevent event, CUstream handle) {
    ENTER(EventRecord);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    // An event is recorded on streams of its own device only.
    if (Bits(handle) > 1 && stream->device != fake.event_device_[Bits(event)]) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    fake.events_[Bits(event)] = stream->clock;
    return CUDA_SUCCESS;
  }
  static bool IsDone(const FakeDriver::Clock& clock) {
    return std::all_of(clock.begin(), clock.end(), [](const auto& entry) {
      return g_fake->done_[entry.first] >= entry.second;
    });
  }
  static CUresult EventQuery(CUevent event) {
    ENTER(EventQuery);
    return IsDone(fake.events_[Bits(event)]) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult EventSynchronize(CUevent event) {
    ENTER(EventSynchronize);
    for (const auto& [id, position] : fake.events_[Bits(event)]) {
      fake.done_[id] = std::max(fake.done_[id], position);
    }
    return CUDA_SUCCESS;
  }
  static CUresult StreamWaitEvent(CUstream handle, CUevent event, unsigned) {
    ENTER(StreamWaitEvent);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    for (const auto& [id, position] : fake.events_[Bits(event)]) {
      stream->clock[id] = std::max(stream->clock[id], position);
    }
    return CUDA_SUCCESS;
  }
  static CUresult StreamCreate(CUstream* stream, unsigned) {
    ENTER(StreamCreate);
    *stream = static_cast<CUstream>(fake.CreateStream(fake.CurrentDevice()).handle());
    fake.driver_streams_.insert(Bits(*stream));
    return CUDA_SUCCESS;
  }
  static CUresult StreamDestroy(CUstream stream) {
    ENTER(StreamDestroy);
    if (fake.driver_streams_.erase(Bits(stream)) == 0) return CUDA_ERROR_INVALID_HANDLE;
    fake.streams_.erase(Bits(stream));
    return CUDA_SUCCESS;
  }
  // Bytes are done at once: what they come after is for the test to see to.
  static CUresult MemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count,
                                CUstream handle) {
    ENTER(MemsetD8Async);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    for (std::size_t i = 0; i < count; ++i) fake.bytes_[address + i] = value;
    return CUDA_SUCCESS;
  }
  static CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream handle) {
    ENTER(MemcpyAsync);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    auto* const target = reinterpret_cast<unsigned char*>(to);  // NOLINT: on the host
    for (std::size_t i = 0; i < bytes; ++i) target[i] = fake.bytes_[from + i];
    return CUDA_SUCCESS;
  }
  static CUresult StreamSynchronize(CUstream handle) {
    ENTER(StreamSynchronize);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    for (const auto& [id, position] : stream->clock)
      fake.done_[id] = std::max(fake.done_[id], position);
    return CUDA_SUCCESS;
  }
  static CUresult StreamQuery(CUstream handle) {
    ENTER(StreamQuery);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    return IsDone(stream->clock) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult StreamGetCtx(CUstream handle, CUcontext* context) {
    ENTER(StreamGetCtx);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = ContextOf(stream->device);
    return CUDA_SUCCESS;
  }
  static CUresult StreamGetId(CUstream handle, unsigned long long* id) {
    ENTER(StreamGetId);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    // A driver refuses that, whatever the mode, and the capture is lost.
    if (const CUresult refused = fake.Refuse(*stream); refused != CUDA_SUCCESS) return refused;
    *id = stream->id;
    return CUDA_SUCCESS;
  }
  static CUresult StreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    ENTER(StreamIsCapturing);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (fake.IsLegacyBesideACapture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static CUresult StreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status,
                                       cuuint64_t* id, CUgraph*, const CUgraphNode**,
                                       std::size_t*) {
    ENTER(StreamGetCaptureInfo);
    FakeDriver::Stream* const stream = fake.Find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (fake.IsLegacyBesideACapture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    *id = stream->capture;
    return CUDA_SUCCESS;
  }
  static CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    ENTER(ThreadExchangeStreamCaptureMode);
    std::swap(fake.mode_, *mode);
    return CUDA_SUCCESS;
  }
#undef ENTER

  static sources::cuda::Driver Table() {
    sources::cuda::Driver table;
#define HBM_FAKE_SET(name, version, parameters) table.name = &FakeCalls::name;
    HBM_CUDA_DRIVER_CALLS(HBM_FAKE_SET)
#undef HBM_FAKE_SET
    return table;
  }
};

FakeDriver::FakeDriver(std::size_t total_bytes) : total_(total_bytes) {
  g_fake = this;
  Stream& legacy = streams_[0];
  legacy.id = next_stream_id_++;
  stream_device_[legacy.id] = 0;
}

FakeDriver::~FakeDriver() { g_fake = nullptr; }

const sources::cuda::Driver& FakeDriver::table() const {
  static const sources::cuda::Driver* const table = new sources::cuda::Driver(FakeCalls::Table());
  return *table;
}

const std::vector<std::string>& FakeDriver::CallNames() {
  static const std::vector<std::string>* const names = new std::vector<std::string>{
#define HBM_FAKE_NAME(name, version, parameters) #name,
      HBM_CUDA_DRIVER_CALLS(HBM_FAKE_NAME)
#undef HBM_FAKE_NAME
  };
  return *names;
}

CUresult FakeDriver::Enter(const char* name) {
  ++total_calls_;
  ++calls_[name];
  // What a driver forbids while anything is captured, but in relaxed mode.
  static const std::set<std::string>* const kUnsafe =
      new std::set<std::string>{"MemAlloc",
                                "MemFree",
                                "MemAllocManaged",
                                "MemHostAlloc",
                                "MemFreeHost",
                                "EventQuery",
                                "EventSynchronize",
                                "StreamCreate",
                                "StreamSynchronize",
                                "MemPoolTrimTo",
                                "MemAllocFromPoolAsync",
                                "MemFreeAsync",
                                "MemPoolGetAttribute",
                                "MemPoolSetAttribute"};
  if (mode_ != CU_STREAM_CAPTURE_MODE_RELAXED && kUnsafe->count(name) != 0) {
    for (const auto& [handle, stream] : streams_) spoilt_captures_ += stream.capturing ? 1 : 0;
  }
  if (fail_all_ != CUDA_SUCCESS) return fail_all_;
  if (fail_at_ != 0 && fail_name_ == name && --fail_at_ == 0) return fail_result_;
  return CUDA_SUCCESS;
}

void FakeDriver::FailCall(const std::string& name, int k, CUresult result) {
  fail_name_ = name;
  fail_at_ = k;
  fail_result_ = result;
}

int FakeDriver::calls(const std::string& name) const {
  const auto found = calls_.find(name);
  return found == calls_.end() ? 0 : found->second;
}

int FakeDriver::Outstanding() const {
  return static_cast<int>(allocations_.size() + reservations_.size() + mappings_.size() +
                          pool_blocks_.size() + handles_.size() + events_.size() + pools_.size() +
                          pushed_.size() + driver_streams_.size()) +
         contexts_;
}

bool FakeDriver::IsBacked(const void* address, std::size_t bytes) const {
  std::uintptr_t at = Bits(address);
  const std::uintptr_t end = at + bytes;
  for (const auto* ranges : {&allocations_, &pool_blocks_, &mappings_}) {
    for (auto it = ranges->upper_bound(at); at < end && it != ranges->begin();
         it = ranges->upper_bound(at)) {
      --it;
      if (at >= it->first + it->second) break;
      at = it->first + it->second;
    }
  }
  return at >= end;
}

bool FakeDriver::Take(std::size_t bytes) {
  if (bytes > total_ || used_ + others_ + bytes > total_) return false;
  used_ += bytes;
  return true;
}

FakeDriver::Stream* FakeDriver::Find(CUstream handle) {
  const std::uintptr_t bits = Bits(handle) == 1 ? 0 : Bits(handle);
  const auto found = streams_.find(bits);
  if (found != streams_.end()) return &found->second;
  ++dead_streams_touched_;
  return nullptr;
}

bool FakeDriver::IsLegacyBesideACapture(const Stream& stream) const {
  if (&stream != &streams_.at(0)) return false;
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) {
    return entry.second.blocking && entry.second.capturing;
  });
}

CUresult FakeDriver::Refuse(const Stream& stream) {
  const bool implicit = IsLegacyBesideACapture(stream);
  if (!implicit && !stream.capturing) return CUDA_SUCCESS;
  ++spoilt_captures_;
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

int FakeDriver::CurrentDevice() const {
  const std::uintptr_t bits = Bits(current_);
  return bits < 0xC0 ? 0 : static_cast<int>(bits - 0xC0);
}

CUcontext FakeDriver::ContextOfDevice(int device) const { return ContextOf(device); }

int FakeDriver::DeviceOf(const void* address) const {
  const auto after = device_of_.upper_bound(Bits(address));
  return after == device_of_.begin() ? -1 : std::prev(after)->second;
}

bool FakeDriver::HasAccess(const void* address, int device) const {
  const auto after = mappings_.upper_bound(Bits(address));
  if (after == mappings_.begin()) return false;
  const auto found = access_.find(std::prev(after)->first);
  return found != access_.end() && found->second.count(device) != 0;
}

StreamRef FakeDriver::CreateStream(int device, bool blocking) {
  std::uintptr_t handle = 0x1000;
  while (streams_.count(handle) != 0) handle += 0x100;
  streams_[handle].id = next_stream_id_++;
  streams_[handle].device = device;
  streams_[handle].blocking = blocking;
  stream_device_[streams_[handle].id] = device;
  return StreamRef::FromHandle(reinterpret_cast<void*>(handle));
}

void FakeDriver::DestroyStream(StreamRef stream) { streams_.erase(stream.value()); }

std::uint64_t FakeDriver::Launch(StreamRef handle) {
  Stream& stream = *Find(static_cast<CUstream>(handle.handle()));
  return ++stream.clock[stream.id];
}

void FakeDriver::Finish(StreamRef handle) {
  const Stream& stream = *Find(static_cast<CUstream>(handle.handle()));
  for (const auto& [id, position] : stream.clock) done_[id] = std::max(done_[id], position);
}

bool FakeDriver::IsOrdered(StreamRef previous, std::uint64_t position, StreamRef next) {
  return IsDoneOrWaited(IdOf(previous), position, next);
}

bool FakeDriver::IsDoneOrWaited(std::uint64_t id, std::uint64_t position, StreamRef next) {
  return done_[id] >= position || Find(static_cast<CUstream>(next.handle()))->clock[id] >= position;
}

std::uint64_t FakeDriver::IdOf(StreamRef stream) {
  return Find(static_cast<CUstream>(stream.handle()))->id;
}

void FakeDriver::SetCapturing(StreamRef stream, bool capturing) {
  Stream& its = *Find(static_cast<CUstream>(stream.handle()));
  its.capturing = capturing;
  its.capture = capturing ? ++last_capture_ : 0;
}

void FakeDriver::JoinCapture(StreamRef stream, StreamRef other) {
  Stream& its = *Find(static_cast<CUstream>(stream.handle()));
  its.capturing = true;
  its.capture = Find(static_cast<CUstream>(other.handle()))->capture;
}

}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
