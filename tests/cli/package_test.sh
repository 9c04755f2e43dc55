#!/bin/bash
# package_test.sh BUILD SOURCE: installs into a fresh prefix, builds the examples against it with find_package and with
# pkg-config, runs them, and checks the shared library's name and what it exports.
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
libdir=$(dirname "$(find "$work/prefix" -name 'libtilewise.so' | head -n 1)")

cmake -S "$source/examples" -B "$work/examples" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/examples" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
for example in causal gradients packed; do "$work/examples/$example"; done

export PKG_CONFIG_PATH=$libdir/pkgconfig
cc "$source/examples/causal.c" -o "$work/causal" $(pkg-config --cflags --libs tilewise) -Wl,-rpath,"$libdir"
"$work/causal"
g++ -std=c++20 "$source/examples/gradients.cpp" -o "$work/gradients" $(pkg-config --cflags --libs tilewise) \
  -Wl,-rpath,"$libdir"
"$work/gradients"

version=$("$work/prefix/bin/tilewise" --version)
[ "$version" = "tilewise $(pkg-config --modversion tilewise)" ] || { echo "versions differ: $version"; exit 1; }
soname=$(objdump -p "$libdir/libtilewise.so" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = libtilewise.so.0 ] || { echo "wrong SONAME"; exit 1; }
foreign=$(nm -D --defined-only "$libdir/libtilewise.so" | awk '$3 !~ /^tw_/ { print $3 }')
[ -z "$foreign" ] || { echo "exports more than tw_*: $foreign"; exit 1; }
echo "installed, found, built and run"
