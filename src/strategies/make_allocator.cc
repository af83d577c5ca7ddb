// SPDX-License-Identifier: Apache-2.0
//
// MakeAllocator: device, source, limit, the place among the processes that share the
// device, strategy, and what watches it, put together.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hbmalloc/allocator.h"
#include "policy/pool_limit.h"
#include "policy/text.h"
#include "sharing/membership.h"
#include "strategies/debug_checks.h"
#include "strategies/observation.h"
#include "strategies/registry.h"

namespace hbm {
namespace strategies {
namespace {

Policy EffectivePolicy(Policy policy, bool is_cuda) {
  const bool fair = policy.sharing == Sharing::kFair;
  Strategy strategy = policy.strategy.value_or(fair ? Strategy::kElastic : Strategy::kBfc);
  if (strategy == Strategy::kBfc && policy.preallocate == false) strategy = Strategy::kOnDemand;
  policy.strategy = strategy;
  if (!policy.preallocate.has_value()) policy.preallocate = strategy == Strategy::kBfc;
  if (!policy.stream_mode.has_value()) {
    policy.stream_mode = is_cuda ? StreamMode::kOrdered : StreamMode::kSingle;
  }
  return policy;
}

}  // namespace

// One for each allocator that is made.
class AllocatorMaker {
 public:
  absl::StatusOr<std::unique_ptr<Allocator>> Make(const Policy& given,
                                                  std::shared_ptr<Device> device,
                                                  std::shared_ptr<MemorySource> source) {
    if (absl::Status valid = ValidatePolicy(given); !valid.ok()) return valid;
    context_.policy = EffectivePolicy(given, device != nullptr && device->IsCuda());
    const bool shares = given.sharing != Sharing::kOff;
    if (shares && device == nullptr) {
      return absl::InvalidArgumentError(
          "sharing: a runtime's own memory source has no name by which other processes know its "
          "device; make the allocator on a device, or use sharing=off");
    }
    if (source == nullptr) {
      absl::StatusOr<std::shared_ptr<MemorySource>> made = device->MakeSource(context_.policy);
      if (!made.ok()) return made.status();
      source = *std::move(made);
    }
    const absl::StatusOr<MemoryInfo> memory = source->GetMemoryInfo();
    if (!memory.ok()) return memory.status();
    if (shares) context_.policy = sharing::WithDefaults(context_.policy, memory->total);
    const absl::StatusOr<policy::PoolLimit> limit =
        policy::ComputePoolLimit(context_.policy, *memory, source->Granularity());
    if (!limit.ok()) return limit.status();
    context_.limit = *limit;
    context_.device = std::move(device);
    context_.source = source;
    device_source_ = std::move(source);
    if (shares) {
      if (absl::Status joined = JoinOthers(memory->total); !joined.ok()) return joined;
    }
    return MakeStrategy();
  }

 private:
  absl::Status JoinOthers(std::size_t total) {
    absl::StatusOr<std::unique_ptr<sharing::Membership>> joined = sharing::Membership::Join(
        context_.policy, context_.device, total, context_.source->Granularity(), &context_.limit);
    if (!joined.ok()) return joined.status();
    membership_ = *std::move(joined);
    context_.source = membership_->Wrap(std::move(context_.source));
    if (*context_.policy.strategy == Strategy::kCudaAsync) {
      return membership_->AwaitStart(context_.limit.bytes);
    }
    if (!*context_.policy.preallocate) return absl::OkStatus();
    return membership_->AwaitStart(context_.limit.start_bytes);
  }

  absl::StatusOr<std::unique_ptr<Allocator>> MakeStrategy() {
    const StrategyFactory make = FindStrategy(*context_.policy.strategy);
    if (make == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("strategy: ", policy::View(ToString(*context_.policy.strategy)),
                       " is not built into this library"));
    }
    const std::shared_ptr<Device> device = context_.device;
    const Policy policy = context_.policy;
    absl::Status able = CheckDebuggable(policy, device_source_.get());
    if (!able.ok()) return able;
    if (TakesQuarantine(policy)) context_.policy.quarantine = 0;
    absl::StatusOr<std::unique_ptr<Allocator>> made = make(std::move(context_));
    if (!made.ok()) return made;
    if (policy.debug.any()) {
      made = MakeDebugChecked(*std::move(made), device_source_, policy);
      if (!made.ok()) return made;
    }
    const std::string name(device != nullptr ? device->Name() : device_source_->Name());
    const void* const address_space = device != nullptr
                                          ? static_cast<const void*>(device.get())
                                          : static_cast<const void*>(device_source_.get());
    SimulatedClock* const clock = device != nullptr ? device->simulated_clock() : nullptr;
    absl::Status watched =
        internal::Observation::Start(**made, {policy, clock, address_space, name});
    if (!watched.ok()) return watched;
    if (membership_ != nullptr || (device != nullptr && device->IsCuda())) {
      (*made)->RefuseInChildren();
    }
    if (membership_ != nullptr) (*made)->BeginSharing(std::move(membership_));
    return made;
  }

  StrategyContext context_;
  std::shared_ptr<MemorySource> device_source_;  // without what sharing puts in front of it
  std::unique_ptr<sharing::Membership> membership_;
};

}  // namespace strategies

absl::StatusOr<std::unique_ptr<Allocator>> MakeAllocator(const Policy& policy,
                                                         std::shared_ptr<Device> device) {
  if (device == nullptr) return absl::InvalidArgumentError("device: must not be null");
  return strategies::AllocatorMaker().Make(policy, std::move(device), nullptr);
}

absl::StatusOr<std::unique_ptr<Allocator>> MakeAllocator(const Policy& policy,
                                                         std::shared_ptr<MemorySource> source) {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  return strategies::AllocatorMaker().Make(policy, nullptr, std::move(source));
}

}  // namespace hbm
