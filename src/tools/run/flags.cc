// SPDX-License-Identifier: Apache-2.0
#include "tools/run/flags.h"

#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policy/text.h"

namespace hbm::run {

const char kHelp[] =
    "usage: hbm-run [--share=0.25] [--device=cuda:0] [--wait=60s] [--verbose] -- COMMAND [ARG...]\n"
    "\n"
    "Runs a program that does not know of hbmalloc (JAX, TensorFlow, PyTorch) in its place among\n"
    "the processes that share a GPU: waits until its share of the memory can be had, books it,\n"
    "tells the program how much it may take, and becomes the program.\n"
    "\n"
    "  --share=0.25     the part of the device, context and libraries included; over 0 to 1\n"
    "  --device=SPEC    cuda:N, a UUID, a PCI bus id, or sim:SIZE,shared=NAME\n"
    "  --wait=60s       how long to wait for its turn; inf: for ever\n"
    "  --verbose        says what was granted\n"
    "  --version, --help\n"
    "\n"
    "Sets CUDA_VISIBLE_DEVICES to the device, XLA_PYTHON_CLIENT_MEM_FRACTION, and, for a Python\n"
    "with PyTorch 2.10 or newer, per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF.\n"
    "The book entry lasts as long as the process. Signals and the exit code are the program's "
    "own.\n"
    "\n"
    "Exit codes of hbm-run itself: 124 waited in vain; 125 usage, no device, no place for the\n"
    "books; 126 the command cannot be run; 127 there is no such command.\n";

namespace {

absl::Status Bad(std::string_view flag, std::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(policy::View(flag), ": ", policy::View(allowed)));
}

// The value of "--name=value".
bool Matches(std::string_view flag, std::string_view name, std::string_view* value) {
  if (flag.size() < name.size() || flag.substr(0, name.size()) != name) return false;
  *value = flag.substr(name.size());
  return true;
}

absl::Status ReadFlag(std::string_view flag, Flags* flags) {
  std::string_view value;
  if (Matches(flag, "--share=", &value)) {
    const absl::StatusOr<double> share = policy::ParseNumber(value);
    if (!share.ok() || *share <= 0 || *share > 1) return Bad(flag, "allowed: over 0 to 1");
    flags->share = *share;
  } else if (Matches(flag, "--wait=", &value)) {
    const absl::StatusOr<absl::Duration> wait = policy::ParseDuration(value);
    if (!wait.ok()) return Bad(flag, policy::View(wait.status()));
    flags->wait = *wait;
  } else if (Matches(flag, "--device=", &value)) {
    if (value.empty()) return Bad(flag, "names no device");
    flags->device = std::string(value);
  } else if (flag == "--verbose") {
    flags->verbose = true;
  } else if (flag == "--help") {
    flags->help = true;
  } else if (flag == "--version") {
    flags->version = true;
  } else {
    return Bad(flag, "no such flag; --help lists them. The command stands behind \"--\"");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Flags> ReadFlags(int argc, char** argv) {
  Flags flags;
  int i = 1;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (argv[i][0] != '-') break;  // the command, without the "--" that would be clearer
    if (absl::Status read = ReadFlag(argv[i], &flags); !read.ok()) return read;
  }
  if (i < argc && std::string_view(argv[i]) == "--") ++i;
  for (; i < argc; ++i) flags.command.emplace_back(argv[i]);
  if (flags.command.empty() && !flags.help && !flags.version) {
    return absl::InvalidArgumentError("no command is given; usage: hbm-run [FLAGS] -- COMMAND");
  }
  return flags;
}

}  // namespace hbm::run
