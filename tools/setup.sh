# Sourced by ./run and ./test: installs what is missing from Debian's packages, configures, builds.
# Everything said goes to standard error, so that standard output is the tool's own.

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Each argument is package=probe: a command to find, or a file that must exist. Installs the packages whose probe fails.
require() {
  local missing=() spec probe
  for spec in "$@"; do
    probe=${spec#*=}
    case $probe in
      /*) [ -e "$probe" ] || missing+=("${spec%%=*}") ;;
      *) command -v "$probe" >/dev/null 2>&1 || missing+=("${spec%%=*}") ;;
    esac
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null 2>&1 ||
    die "Missing: ${missing[*]} (Debian's names), and there is no apt-get here. Install them, then start again."
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 ||
      die "Missing: ${missing[*]}. Install them as root (apt-get install ${missing[*]}), then start again."
    root=(sudo)
  fi
  say "Installing from Debian: ${missing[*]}"
  local log
  log=$(mktemp)
  {
    "${root[@]}" apt-get update &&
      "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 </dev/null || { cat "$log" >&2; rm -f "$log"; die "Installation failed; the messages above say why."; }
  rm -f "$log"
}

# configure FOLDER [cmake options]: does nothing when the folder was configured from here with these options before.
configure() {
  local folder=$1 wanted launcher=()
  shift
  wanted="options: $*"
  if [ -f "$folder/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$folder/CMakeCache.txt"; then
    rm -rf "$folder"  # the tree was moved or copied
  fi
  [ -f "$folder/build.ninja" ] && grep -qxF "$wanted" "$folder/configured" 2>/dev/null && return
  say "Configuring $folder"
  mkdir -p "$folder"
  command -v ccache >/dev/null 2>&1 && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake -S . -B "$folder" -G Ninja "${launcher[@]}" "$@" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; die "Configuring failed; the messages above say why."; }
  printf '%s\n' "$wanted" >>"$folder/configured"
}

# build FOLDER [targets]: says so when it takes longer than a look around, and shows progress on a terminal.
build() {
  local folder=$1 pid tries=0
  shift
  ninja -C "$folder" "$@" >"$folder/build.log" 2>&1 &
  pid=$!
  trap 'kill $pid 2>/dev/null; exit 130' INT TERM
  while kill -0 $pid 2>/dev/null && [ $((tries++)) -lt 30 ]; do sleep 0.02; done
  if kill -0 $pid 2>/dev/null; then
    say "Building $folder (a few minutes the first time)"
    [ -t 2 ] && tail --pid=$pid -n +1 -f "$folder/build.log" >&2
  fi
  wait $pid || { cat "$folder/build.log" >&2; die "The build failed; the messages above say why."; }
  trap - INT TERM
}
