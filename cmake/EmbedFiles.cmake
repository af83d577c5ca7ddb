# SPDX-License-Identifier: Apache-2.0
# Text files as C++: a source that defines
#   extern const EmbeddedFile kEmbeddedFiles[];  extern const std::size_t kEmbeddedFileCount;
# with the files' names and texts, in the order given. Run as a script:
#   cmake -DOUTPUT=FILE.cc "-DFILES=FILE;FILE" -DHEADER=HEADER -DNAMESPACE=NAME -P EmbedFiles.cmake
set(text "// Written by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
string(APPEND text "const EmbeddedFile kEmbeddedFiles[] = {\n")
set(count 0)
foreach(path IN LISTS FILES)
  get_filename_component(name "${path}" NAME)
  file(READ "${path}" content)
  if(content MATCHES "\\)embedded\"")
    message(FATAL_ERROR "${path} holds the mark that ends an embedded text")
  endif()
  string(APPEND text "    {\"${name}\", R\"embedded(${content})embedded\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(APPEND text "};\nconst std::size_t kEmbeddedFileCount = ${count};\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUTPUT}" "${text}")
