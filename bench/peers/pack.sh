#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gathers what a GPU machine without a network needs to run the peers: the wheels
# that are built against there, and the programs built here that need no GPU, with
# the libraries they load (a 51 MB library of TensorFlow's travels stripped and
# compressed). The traces come with the source tree.
#   pack.sh FOLDER BUILD_FOLDER...     (about 20 MB)
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '3,7p' "$0"
  exit 2
fi
folder=$1
shift
mkdir -p "$folder/bin" "$folder/lib" "$folder/wheels"

python3 -m pip download --quiet --no-deps --dest "$folder/wheels" \
  librmm-cu13==26.10.0 rapids-logger==0.3.0

# What every machine with the same kind of system has is left out.
system='linux-vdso|ld-linux|libc\.so|libm\.so|libstdc\+\+|libgcc_s|libpthread|libdl\.so|librt\.so'
for name in tensorflow_bfc_peer offset_allocator_peer hbmalloc_peer hbm-replay; do
  program=$(find "$@" -type f -name "$name" -perm -u+x -print -quit)
  if [ -z "$program" ]; then
    echo "pack: $name is not built under $*: left out"
    continue
  fi
  cp "$program" "$folder/bin/"
  ldd "$program" | awk '$3 ~ /^\// {print $1, $3}' | grep -Ev "^($system)" |
    while read -r library path; do
      [ -e "$folder/lib/$library" ] || [ -e "$folder/lib/$library.xz" ] && continue
      cp -L "$path" "$folder/lib/$library"
      chmod u+w "$folder/lib/$library"
      strip --strip-unneeded "$folder/lib/$library" || true
    done || true
done
strip "$folder"/bin/* || true
find "$folder/lib" -type f -size +4M ! -name '*.xz' -exec xz -f {} +
du -sh "$folder"
