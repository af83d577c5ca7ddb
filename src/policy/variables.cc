// SPDX-License-Identifier: Apache-2.0
#include "policy/variables.h"

namespace hbm::policy {
namespace {

constexpr std::string_view kTensorFlowOnly = "only TensorFlow reads it";
constexpr std::string_view kNothingReadsIt = "no program is known to read it";
constexpr std::string_view kNoCollectivePool = "there is no separate pool for collectives here";
constexpr std::string_view kNoHostPool = "there is no pool of host memory beside this one here";
constexpr std::string_view kOwnPool =
    "cuda_async has its own pool here; the policy's fields say how large it is";

std::vector<Variable> MakeVariables() {
  using Role = VariableRole;
  return {
      {kPolicyVariable, Role::kPolicy, "XLA's variables decide"},
      {kAllocatorVariable, Role::kXla, "default"},
      {kPreallocateVariable, Role::kXla, "true"},
      {kFractionVariable, Role::kXla, "0.75"},
      {kOldFractionVariable, Role::kXla, "0.75"},
      {kUnifiedVariable, Role::kXla, "false"},
      {"HBMALLOC_SHARING_DIR", Role::kOwn, "/dev/shm, else XDG_RUNTIME_DIR"},
      {"HBMALLOC_SHARING_GROUP", Role::kOwn, "one user's processes share"},
      {"TF_GPU_ALLOCATOR", Role::kNotInForce, kTensorFlowOnly},
      {"TF_FORCE_GPU_ALLOW_GROWTH", Role::kNotInForce, kTensorFlowOnly},
      {"TF_ENABLE_GPU_GARBAGE_COLLECTION", Role::kNotInForce, kTensorFlowOnly},
      {"TF_GPU_HOST_MEM_LIMIT_IN_MB", Role::kNotInForce, kTensorFlowOnly},
      {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", Role::kNotInForce, kTensorFlowOnly},
      {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", Role::kNotInForce, kOwnPool},
      {"TF_DETERMINISTIC_ALLOCATOR", Role::kNotInForce, kOwnPool},
      {"TF_BFC_MEMORY_DUMP", Role::kNotInForce, "the error's own text is the report here"},
      {"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB", Role::kNotInForce, kNoCollectivePool},
      {"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", Role::kNotInForce, kNoHostPool},
      {"XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE", Role::kNotInForce, kNoHostPool},
      {"XLA_PJRT_GPU_ALLOCATOR", Role::kNotInForce, kNothingReadsIt},
      {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC_SIZE_BYTES", Role::kNotInForce, kNothingReadsIt},
      {"TF_GPU_MEMORY_LIMIT", Role::kNotInForce, kNothingReadsIt},
  };
}

}  // namespace

const std::vector<Variable>& Variables() {
  static const auto* const variables = new std::vector<Variable>(MakeVariables());
  return *variables;
}

const Variable* FindVariable(std::string_view name) {
  for (const Variable& variable : Variables()) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

}  // namespace hbm::policy
