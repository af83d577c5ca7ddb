// SPDX-License-Identifier: Apache-2.0
//
// File: device_spec.h
//
// The common form of device specs, KIND[:MAIN][,OPTION=VALUE...], taken apart,
// with errors that say where in the text they are.
//
//   absl::StatusOr<DeviceSpec> spec = DeviceSpec::Parse("sim:80GiB,lag=1ms");
//   // spec->kind is "sim", spec->main.value "80GiB", spec->options[0].key "lag".
#ifndef HBMALLOC_SOURCES_DEVICE_SPEC_H_
#define HBMALLOC_SOURCES_DEVICE_SPEC_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hbm::sources {

struct DeviceSpec {
  struct Field {
    std::string key;           // empty for the main value
    std::string value;         // empty if not given
    std::size_t position = 0;  // of the field in the text, counted from 1
  };

  std::string text;
  std::string kind;
  Field main;
  std::vector<Field> options;

  // InvalidArgument: an empty kind or option, an option without "=", or one that
  // is given twice.
  static absl::StatusOr<DeviceSpec> Parse(std::string_view text);

  // InvalidArgument that says where `field` is, its value and what is wrong.
  absl::Status Error(const Field& field, std::string_view problem) const;

  // The field's value as bytes.
  absl::StatusOr<std::size_t> Bytes(const Field& field) const;
};

// Reads the name by which several processes open one device: 1 to 64 letters, digits,
// "-" and "_".
absl::Status ReadSharedName(const DeviceSpec& spec, const DeviceSpec::Field& field,
                            std::string* name);

// What all errors about a device spec begin with.
absl::Status DeviceSpecError(std::string_view text, std::string_view problem);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_DEVICE_SPEC_H_
