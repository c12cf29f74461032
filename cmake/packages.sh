# shellcheck shell=bash disable=SC2034
# Sourced by ./check and ./quickstart, which must have cd'ed to the top of the tree.

# What CLAN is built from.
CLAN_PACKAGES=(g++ cmake ninja-build git pkg-config python3 ca-certificates
  libgtest-dev libcli11-dev libfmt-dev nlohmann-json3-dev libfabric-dev libssl-dev libomniorb4-dev omniidl libtirpc-dev rpcsvc-proto
  libopenmpi-dev)
# Encryption between hosts by instructions that OpenSSL 3.0 does not use. Debian has it for this architecture alone.
[ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || CLAN_PACKAGES+=(libipsec-mb-dev)

# What ./quickstart shows beside the kernel.
CLAN_SHOW_PACKAGES=(redis-server redis-tools libfabric-bin)

# The programs that tests/interpose, tests/programs, tests/hosts and `clan bench` run. Without
# one its tests are skipped. (Large ones are not here: javac is in default-jdk-headless, mariadbd in mariadb-server, erl
# in erlang-base; varnishd compiles, and is in varnish. Node.js is "nodejs". mosquitto's test is run by hand.)
CLAN_TEST_PACKAGES=(redis-server redis-tools memcached nginx-light libnginx-mod-stream curl apache2-utils wrk haproxy postgresql
  iperf3 sockperf netpipe-tcp openmpi-bin netpipe-openmpi hpcc python3-mpi4py libfabric-bin
  rsync openssl vsftpd openssh-server openssh-client nodejs python3 libpython3.11-testsuite musl-tools
  apache2-bin nghttp2 lighttpd squid beanstalkd mosquitto mosquitto-clients python3-zmq php-cli ruby stunnel4 liburing-dev liblwip-dev
  omniorb omniorb-doc omniorb-nameserver omnievents tango-test python3-tango rpcbind rstatd rstat-client
  krb5-kdc krb5-admin-server strace tshark
  iputils-ping iproute2 traceroute tcpdump vde2 tinc)

# What the fuzzers are compiled with. Without it they are skipped by name.
CLAN_FUZZ_PACKAGES=(clang libclang-rt-14-dev)

# Of these ./check is not to do without on a machine that could have them: it fails when one cannot be installed, or
# when one of the tests is skipped although they are there.
CLAN_CORE_PACKAGES=(redis-server redis-tools memcached nginx-light curl apache2-utils wrk haproxy postgresql iperf3
  openmpi-bin libopenmpi-dev libfabric-bin rsync openssl openssh-server openssh-client nodejs python3)
CLAN_CORE_TESTS=(interpose.redis interpose.memcached interpose.nginx interpose.haproxy interpose.postgres
  interpose.iperf3 interpose.openmpi interpose.rsync interpose.openssl interpose.ssh interpose.python interpose.node
  libfabric.info libfabric.pingpong libfabric.collectives libfabric.point_to_point libfabric.one_sided)

# What was tried by hand and is in no test of ./check.
CLAN_NOT_COVERED=(MPICH UCX fabtests)

as_root=()
packages_known=no  # apt-get update has run

# missing_packages PACKAGE...: those that are not installed, into `missing`.
missing_packages() {
  local package
  missing=()
  for package in "$@"; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
      "install ok installed") ;;
      *) missing+=("$package") ;;
    esac
  done
}

become_root() {
  as_root=()
  [ "$(id -u)" -eq 0 ] && return 0
  command -v sudo >/dev/null || return 1
  as_root=(sudo)
  [ -t 0 ] || as_root=(sudo -n)  # nobody there to type a password
  "${as_root[@]}" true
}

apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 "$@" \
    </dev/null >/dev/null
}

service_units() { find /lib/systemd/system/ -maxdepth 1 -name '*.service' -printf '%f\n' 2>/dev/null | sort; }

# apt_install PACKAGE...: as root. Debian's packages of servers start them, now and whenever the machine
# boots. We want the programs alone: policy-rc.d, which the packages ask, says no while we install (where
# there is one, the machine has its own opinion), and the units that came with them are disabled.
apt_install() (
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    # With a trap, and in a subshell: ^C must not leave it behind.
    trap '"${as_root[@]}" rm -f $policy' EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\n# CLAN is installing packages\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod 755 $policy
  fi
  units=$(service_units)
  apt_get install --no-install-recommends "$@"
  status=$?
  for unit in $(comm -13 <(echo "$units") <(service_units)); do
    "${as_root[@]}" systemctl disable "$unit" >/dev/null 2>&1  # without systemd there is nothing to disable
  done
  exit $status
)

# available_packages PACKAGE...: this Debian has all of them.
available_packages() {
  local package
  for package in "$@"; do
    case $(apt-cache policy "$package" 2>/dev/null) in
      *"Candidate: (none)"* | "") return 1 ;;
    esac
  done
}

# update_packages: apt's lists, once.
update_packages() {
  [ $packages_known = yes ] && return 0
  packages_known=yes
  apt_get update || echo "apt-get update failed, trying with what is known" >&2
}

# install_packages PACKAGE...: does nothing, and needs no rights, when all are there.
install_packages() {
  local missing
  missing_packages "$@"
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing: ${missing[*]}"
  if ! become_root; then
    echo "these packages are missing, and we are neither root nor may use sudo: ${missing[*]}" >&2
    return 1
  fi
  update_packages
  apt_install "${missing[@]}"
}

# install_optional_packages WITHOUT PACKAGE...: those that can be had; a sentence names the others and says,
# in the words of WITHOUT, what it is like without them. Fails only when it was interrupted.
install_optional_packages() {
  local missing package without=$1
  shift
  missing_packages "$@"
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing: ${missing[*]}"
  if become_root 2>/dev/null; then
    update_packages
    apt_install "${missing[@]}" 2>/dev/null
    case $? in
      0) ;;
      130) return 130 ;;
      # One that this Debian does not have keeps all of them away: one at a time.
      *) for package in "${missing[@]}"; do
           apt_install "$package" 2>/dev/null
           [ $? -ne 130 ] || return 130
         done ;;
    esac
    missing_packages "$@"
  fi
  [ ${#missing[@]} -eq 0 ] || echo "could not be installed: ${missing[*]}; $without" >&2
  return 0
}

# build_preset NAME [TARGET]: configures and builds it; quiet where all is well.
build_preset() {
  cmake --preset "$1" --log-level=WARNING >/dev/null || return 1
  cmake --build --preset "$1" --parallel "$(nproc)" --target "${2:-all}"
}
