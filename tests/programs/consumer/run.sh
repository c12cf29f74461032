#!/bin/sh
# Installs the build, moves the installed tree, and uses it from there: the `clan` program, the
# interposer, the libfabric provider, the transport for omniORB, libclanrpc and the transport for Open MPI (where they
# are built: ON), a project with find_package(clan), one with pkg-config.
#   run.sh CMAKE BUILD_DIR CXX LIBDIR PYTHON ON|OFF ON|OFF ON|OFF ON|OFF ON|OFF
set -eu
cmake=$1 build=$2 cxx=$3 libdir=$4 python=$5 preload=$6 libfabric=$7 orb=$8 rpc=$9 mpi=${10}
here=$(cd "$(dirname "$0")" && pwd)
work=$build/install_consumer
rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" ||
  { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/moved"
prefix=$work/moved

echo "== bin/clan from a moved tree"
"$prefix/bin/clan" --version

if [ "$preload" = ON ]; then
  echo "== clan run, clan stat and clan bench apps from a moved tree"
  "$prefix/bin/clan" run "$python" -B "$here/interposed.py" "$prefix"
  if [ -e "$build/lib/libclan-net.so" ]; then
    CLAN_NETWORK_MODE=off "$prefix/bin/clan" run --net true
  fi
  if [ -d "$prefix/lib/clan/apps" ]; then  # the benchmarks may not be built
    "$prefix/bin/clan" bench apps --list >"$work/apps.log"
    grep "^redis-c1 " "$work/apps.log"
  fi
fi

if [ "$libfabric" = ON ]; then
  echo "== libfabric finds the provider in the moved tree"
  FI_PROVIDER_PATH=$prefix/lib/libfabric "$python" -B "$here/provider.py"
fi

if [ "$preload" = ON ] && [ "$orb" = ON ]; then
  echo "== clan run --with orb from the moved tree"
  "$python" -B "$here/faces.py" "$prefix" orb "$build/bin/omniorb-suite-server" "$build/bin/omniorb-suite-call"
fi

if [ "$preload" = ON ] && [ "$rpc" = ON ]; then
  echo "== clan run --with rpc and clan-rpcgen from the moved tree"
  "$python" -B "$here/faces.py" "$prefix" rpc "$build/bin/sunrpc-server" "$build/bin/sunrpc-client"
  mkdir -p "$work/shrimp"
  echo 'program SUM { version ONE { int ADD(int) = 1; } = 1; } = 0x20000099;' >"$work/shrimp/sum.x"
  "$prefix/bin/clan-rpcgen" -o "$work/shrimp/sum" "$work/shrimp/sum.x"
  for stub in slot clnt svc; do
    "$cxx" -x c++ -std=c++20 -fsyntax-only -I"$prefix/include" "$work/shrimp/sum_$stub.c"
  done
fi

if [ "$preload" = ON ] && [ "$mpi" = ON ]; then
  echo "== clan run --with mpi from the moved tree"
  "$python" -B "$here/faces.py" "$prefix" mpi "$build/bin/mpi-collectives"
fi

echo "== find_package(clan)"
"$cmake" -S "$here" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >/dev/null
"$cmake" --build "$work/by-cmake"
"$work/by-cmake/consumer"

echo "== pkg-config"
PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # several flags on purpose
"$cxx" -std=c++20 $(pkg-config --cflags clan) "$here/main.cc" -o "$work/by-pkg-config" \
  $(pkg-config --libs clan) -Wl,-rpath,"$prefix/$libdir"
"$work/by-pkg-config"

echo "== C++17 is refused in words"
# shellcheck disable=SC2046
if "$cxx" -std=c++17 $(pkg-config --cflags clan) -fsyntax-only "$here/main.cc" 2>"$work/c++17.log"; then
  echo "it compiles as C++17" >&2
  exit 1
fi
grep -q "CLAN's headers need C++20" "$work/c++17.log" || { cat "$work/c++17.log"; exit 1; }

# Nothing in the tree may remember where it was built.
if grep -rl "$work/first" "$prefix"; then
  echo "the files above name the prefix they were installed to" >&2
  exit 1
fi
