# shellcheck shell=bash
# Sourced by ./check and ./quickstart, which must have cd'ed to the top of the tree.
# install_packages: the Debian packages CLAN is built from. Does nothing, and needs no rights, when
# all are there.

CLAN_PACKAGES=(g++ cmake ninja-build git pkg-config python3 ca-certificates
  libgtest-dev libcli11-dev libfmt-dev)

# The programs that tests/interpose runs. Without one its tests are skipped. (Java's is skipped without javac,
# default-jdk-headless, which is large; Node.js is "nodejs".)
# shellcheck disable=SC2034
CLAN_TEST_PACKAGES=(redis-server redis-tools memcached nginx-light curl apache2-utils wrk haproxy postgresql
  iperf3 sockperf netpipe-tcp openmpi-bin netpipe-openmpi python3-mpi4py rsync openssl vsftpd openssh-server
  openssh-client nodejs python3 libpython3.11-testsuite)

install_packages() {
  local missing=() package
  for package in "${CLAN_PACKAGES[@]}"; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
      "install ok installed") ;;
      *) missing+=("$package") ;;
    esac
  done
  [ ${#missing[@]} -eq 0 ] && return 0

  echo "installing: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "these packages are missing, and neither root nor sudo is here: ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)  # nobody there to type a password
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3)
  "${apt[@]}" update >/dev/null || echo "apt-get update failed, trying with what is known" >&2
  "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# build_preset NAME: configures and builds it; quiet where all is well.
build_preset() {
  cmake --preset "$1" --log-level=WARNING >/dev/null || return 1
  cmake --build --preset "$1" --parallel "$(nproc)"
}
