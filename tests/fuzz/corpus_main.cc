// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target as a plain program, with any compiler: over the files it is given,
// and over inputs of its own making, which are changed copies of them and random bytes.
//
//   operations_corpus [--random=N] [--seed=N] FILE_OR_FOLDER...
//
// Prints how many inputs it ran. An input that fails is left in crash-input.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;
Input current;

void SaveAndAbort(int signal) {
  std::FILE* const file = std::fopen("crash-input", "wb");
  if (file != nullptr) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

Input Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(file), {});
}

void Run(Input input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

Input Changed(const std::vector<Input>& corpus, std::mt19937_64& random) {
  Input input;
  if (!corpus.empty() && random() % 3 != 0) input = corpus[random() % corpus.size()];
  if (input.empty()) {
    input.resize(random() % 2000);
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
    return input;
  }
  for (std::uint64_t i = 1 + random() % 8; i-- > 0 && !input.empty();) {
    const auto at = static_cast<std::ptrdiff_t>(random() % input.size());
    switch (random() % 4) {
      case 0:
        input.erase(input.begin() + at);
        break;
      case 1:
        input.insert(input.begin() + at, static_cast<std::uint8_t>(random()));
        break;
      case 2:
        input.resize(static_cast<std::size_t>(at));
        break;
      default:
        input[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random());
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t count = 0;
  std::uint64_t seed = 1;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--random=", 0) == 0) {
      count = std::strtoull(argument.c_str() + 9, nullptr, 10);
    } else if (argument.rfind("--seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else if (std::filesystem::is_directory(argument)) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
      for (const auto& file : files) corpus.push_back(Read(file));
    } else {
      corpus.push_back(Read(argument));
    }
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE}) std::signal(signal, SaveAndAbort);
  for (const Input& input : corpus) Run(input);
  std::mt19937_64 random(seed);
  for (std::uint64_t i = 0; i < count; ++i) Run(Changed(corpus, random));
  std::printf("%zu inputs of the corpus, %llu made: no failure\n", corpus.size(),
              static_cast<unsigned long long>(count));
  return 0;
}
