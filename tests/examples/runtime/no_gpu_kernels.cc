// SPDX-License-Identifier: Apache-2.0
#include "tests/examples/runtime/kernels.h"

namespace runtime {

std::unique_ptr<Kernels> MakeGpuKernels() { return nullptr; }

}  // namespace runtime
