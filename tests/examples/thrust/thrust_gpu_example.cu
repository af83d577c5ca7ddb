// SPDX-License-Identifier: Apache-2.0
#include "tests/examples/thrust/thrust_example.cc"  // NOLINT(build/include)
