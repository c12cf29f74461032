#include "device.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "netlink.h"

namespace clan::ip {

Device::Device(Device&& other) noexcept
    : name_(std::move(other.name_)),
      queues_(std::exchange(other.queues_, {})),
      offloads_(other.offloads_),
      possible_(other.possible_) {}

// The device goes with its last queue, and its addresses and routes with it.
Device::~Device() {
  for (const int fd : queues_) ::close(fd);
}

Result<Device> Device::create(const std::string& name) {
  if (name.empty() || name.size() >= IFNAMSIZ || name.find_first_of("/%") != std::string::npos)
    return Error{EINVAL, "a device has a name of 1 to 15 characters, without / and %"};
  if (::if_nametoindex(name.c_str()) != 0)
    return Error{EEXIST, "there is a device of that name: end it (clan ip down), or take another"};
  Device device(name);
  if (auto first = device.add_queue(); !first) {
    if (first.error().err == ENOENT || first.error().err == ENODEV)
      return Error{first.error().err, "no /dev/net/tun (modprobe tun; a container: --device)"};
    if (first.error().err != EPERM && first.error().err != EACCES) return first.error();
    return Error{first.error().err, "a network device takes CAP_NET_ADMIN and /dev/net/tun: root"};
  }
  // Without an owner any user could attach a queue to it.
  if (::ioctl(device.queues_[0], TUNSETOWNER, static_cast<unsigned long>(::geteuid())) != 0)
    return Error{errno, "the kernel gives the device no owner (TUNSETOWNER)"};
  // The last ones are of newer kernels.
  for (const unsigned all : {kAllOffloads, kAllOffloads & ~(kUso4 | kUso6), kCsum, 0u}) {
    if (!device.set_offloads(all)) continue;
    device.possible_ = all;
    break;
  }
  return device;
}

Result<unsigned> Device::add_queue() {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Error{errno, "/dev/net/tun"};
  ifreq request{};
  name_.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE);
  if (::ioctl(fd, TUNSETIFF, &request) != 0) {
    const int error = errno;
    ::close(fd);
    return Error{error, "the kernel makes no queue of the device (TUNSETIFF)"};
  }
  queues_.push_back(fd);
  return queues() - 1;
}

Status Device::steer(std::span<const Steered> prefixes) {
  return ip::steer(queues_.front(), prefixes);
}

Status Device::set_offloads(unsigned offloads) {
  if (::ioctl(queues_.front(), TUNSETOFFLOAD, static_cast<unsigned long>(offloads)) != 0)
    return Error{errno, "the kernel refuses these offloads (TUNSETOFFLOAD)"};
  offloads_ = offloads;
  return {};
}

Status Device::configure(std::span<const Prefix> addresses, unsigned mtu,
                         std::span<const Prefix> routes) {
  const unsigned index = ::if_nametoindex(name_.c_str());
  for (const Prefix& address : addresses) {
    if (auto added = add_address(index, address); !added) return added;
  }
  if (auto up = set_up(index, mtu); !up) return up;
  for (const Prefix& route : routes) {
    if (auto added = add_route(index, route); !added) return added;
  }
  return {};
}

}  // namespace clan::ip
