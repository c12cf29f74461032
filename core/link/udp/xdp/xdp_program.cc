#include "link/udp/xdp/xdp_program.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <iterator>

#include "clan/detail/system_call.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace clan::udp {
namespace {

// With the number of its version: another version's program is another program.
constexpr char kName[] = "clan_udp_1";
constexpr char kSocketsName[] = "clan_sockets";
constexpr char kPortsName[] = "clan_ports";
constexpr std::uint32_t kPorts = 65'536;
constexpr int kTries = 20;
constexpr long kBetweenNs = 1'000'000;

/// What `ports` has for a port. Both in network order, as frames have them.
struct Owner {
  std::uint32_t ip = 0;
  std::uint32_t queue = 0;
};

template <typename T>
std::uint64_t address_of(T* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

long bpf(bpf_cmd command, bpf_attr& a) { return ::syscall(SYS_bpf, command, &a, sizeof a); }

Fd get_by_id(bpf_cmd command, std::uint32_t id) {
  bpf_attr a{};
  a.link_id = id;  // a union of all kinds of ids
  return Fd(static_cast<int>(bpf(command, a)));
}

template <typename Info>
bool get_info(const Fd& fd, Info* info) {
  bpf_attr a{};
  a.info.bpf_fd = static_cast<std::uint32_t>(fd.get());
  a.info.info_len = sizeof *info;
  a.info.info = address_of(info);
  return bpf(BPF_OBJ_GET_INFO_BY_FD, a) == 0;
}

Fd make_map(bpf_map_type type, const char* name, std::uint32_t value, std::uint32_t flags) {
  bpf_attr a{};
  a.map_type = type;
  a.key_size = sizeof(std::uint32_t);
  a.value_size = value;
  a.max_entries = kPorts;
  a.map_flags = flags;
  std::strncpy(a.map_name, name, sizeof a.map_name - 1);
  return Fd(static_cast<int>(bpf(BPF_MAP_CREATE, a)));
}

Status update(const Fd& map, std::uint32_t key, const void* value, std::uint64_t flags) {
  bpf_attr a{};
  a.map_fd = static_cast<std::uint32_t>(map.get());
  a.key = address_of(&key);
  a.value = address_of(value);
  a.flags = flags;
  return bpf(BPF_MAP_UPDATE_ELEM, a) == 0 ? Status() : errno_error("a table of the XDP program");
}

// --- the program ---------------------------------------------------------------------------------

enum Register : std::uint8_t { r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10 };

constexpr bpf_insn insn(int code, int to, int from, int offset, int value) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(to & 15),
          static_cast<std::uint8_t>(from & 15), static_cast<std::int16_t>(offset), value};
}
constexpr bpf_insn load(int size, Register to, Register from, int offset) {
  return insn(BPF_LDX | BPF_MEM | size, to, from, offset, 0);
}
constexpr bpf_insn store(int size, Register to, int offset, Register from) {
  return insn(BPF_STX | BPF_MEM | size, to, from, offset, 0);
}
constexpr bpf_insn move(Register to, Register from) {
  return insn(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0);
}
constexpr bpf_insn set(Register to, int value) {
  return insn(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value);
}
constexpr bpf_insn alu(int operation, Register to, int value) {
  return insn(BPF_ALU64 | operation | BPF_K, to, 0, 0, value);
}
constexpr bpf_insn call(int function) { return insn(BPF_JMP | BPF_CALL, 0, 0, 0, function); }
// Jumps to the instruction at `to`; this one is at `at`.
constexpr bpf_insn jump_if(int at, int how, Register a, int value, int to) {
  return insn(BPF_JMP | how | BPF_K, a, 0, to - at - 1, value);
}
constexpr bpf_insn jump_if(int at, int how, Register a, Register b, int to) {
  return insn(BPF_JMP | how | BPF_X, a, b, to - at - 1, 0);
}

Result<Fd> load_program(const Fd& sockets, const Fd& ports, int longest) {
  constexpr int kPass = 38;
  const bpf_insn program[] = {
      /*  0 */ load(BPF_W, r7, r1, 16),  // the queue
      /*  1 */ load(BPF_W, r2, r1, 0),   // the frame
      /*  2 */ load(BPF_W, r3, r1, 4),   // its end
      /*  3 */ move(r4, r2),
      /*  4 */ alu(BPF_ADD, r4, kFrameHeader),
      /*  5 */ jump_if(5, BPF_JGT, r4, r3, kPass),
      /*  6 */ move(r5, r3),
      /*  7 */ insn(BPF_ALU64 | BPF_SUB | BPF_X, r5, r2, 0, 0),
      /*  8 */ jump_if(8, BPF_JGT, r5, longest, kPass),
      /*  9 */ load(BPF_H, r4, r2, 12),
      /* 10 */ jump_if(10, BPF_JNE, r4, htons(0x0800), kPass),
      /* 11 */ load(BPF_B, r4, r2, 14),
      /* 12 */ jump_if(12, BPF_JNE, r4, 0x45, kPass),
      /* 13 */ load(BPF_H, r4, r2, 20),
      /* 14 */ alu(BPF_AND, r4, htons(0x3fff)),
      /* 15 */ jump_if(15, BPF_JNE, r4, 0, kPass),  // a fragment
      /* 16 */ load(BPF_B, r4, r2, 23),
      /* 17 */ jump_if(17, BPF_JNE, r4, IPPROTO_UDP, kPass),
      /* 18 */ load(BPF_W, r8, r2, 30),  // the destination
      /* 19 */ load(BPF_H, r9, r2, 36),  // at which port
      /* 20 */ insn(BPF_ALU | BPF_END | BPF_TO_BE, r9, 0, 0, 16),
      /* 21 */ store(BPF_W, r10, -4, r9),
      // NOLINTNEXTLINE(misc-redundant-expression): BPF_LD and BPF_IMM are both 0
      /* 22 */ insn(BPF_LD | BPF_DW | BPF_IMM, r1, BPF_PSEUDO_MAP_FD, 0, ports.get()),
      /* 23 */ insn(0, 0, 0, 0, 0),
      /* 24 */ move(r2, r10),
      /* 25 */ alu(BPF_ADD, r2, -4),
      /* 26 */ call(BPF_FUNC_map_lookup_elem),
      /* 27 */ jump_if(27, BPF_JEQ, r0, 0, kPass),
      /* 28 */ load(BPF_W, r4, r0, 0),
      /* 29 */ jump_if(29, BPF_JNE, r4, r8, kPass),
      /* 30 */ load(BPF_W, r4, r0, 4),
      /* 31 */ jump_if(31, BPF_JNE, r4, r7, kPass),
      // NOLINTNEXTLINE(misc-redundant-expression): both are 0
      /* 32 */ insn(BPF_LD | BPF_DW | BPF_IMM, r1, BPF_PSEUDO_MAP_FD, 0, sockets.get()),
      /* 33 */ insn(0, 0, 0, 0, 0),
      /* 34 */ move(r2, r9),
      /* 35 */ set(r3, XDP_PASS),  // where that socket has gone
      /* 36 */ call(BPF_FUNC_redirect_map),
      /* 37 */ insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
      /* 38 */ set(r0, XDP_PASS),
      /* 39 */ insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
  };
  bpf_attr a{};
  a.prog_type = BPF_PROG_TYPE_XDP;
  a.insn_cnt = std::size(program);
  a.insns = address_of(program);
  a.license = address_of("Dual BSD/GPL");
  std::strncpy(a.prog_name, kName, sizeof a.prog_name - 1);
  Fd made(static_cast<int>(bpf(BPF_PROG_LOAD, a)));
  if (!made) return errno_error("loading the XDP program");
  return made;
}

}  // namespace

// --- the first -----------------------------------------------------------------------------------

Result<XdpProgram> XdpProgram::load(Where where) {
  XdpProgram made;
  made.sockets_ = make_map(BPF_MAP_TYPE_XSKMAP, kSocketsName, sizeof(std::uint32_t), 0);
  if (!made.sockets_)
    return errno_error("a table of AF_XDP sockets (needs CAP_BPF, CAP_NET_ADMIN)");
  made.ports_ = make_map(BPF_MAP_TYPE_HASH, kPortsName, sizeof(Owner), BPF_F_NO_PREALLOC);
  if (!made.ports_) return errno_error("a table of the XDP program (needs CAP_BPF)");
  const auto most =
      static_cast<int>(where == Where::kNative ? kLongestFrame : kLongestGenericFrame);
  auto program = load_program(made.sockets_, made.ports_, most);
  if (!program) return program.error();
  made.program_ = std::move(*program);
  return made;
}

Status XdpProgram::attach(int device, Where where) {
  bpf_attr a{};
  a.link_create.prog_fd = static_cast<std::uint32_t>(program_.get());
  a.link_create.target_ifindex = static_cast<std::uint32_t>(device);
  a.link_create.attach_type = BPF_XDP;
  a.link_create.flags = where == Where::kNative ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
  link_ = Fd(static_cast<int>(bpf(BPF_LINK_CREATE, a)));
  return link_ ? Status() : errno_error("attaching the XDP program (needs CAP_NET_ADMIN)");
}

Status XdpProgram::possible() {
  const Fd socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket) {
    return errno == EPERM ? errno_error("AF_XDP needs CAP_NET_RAW")
                          : errno_error("this kernel has no AF_XDP (XDP_SOCKETS)");
  }
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) != 0)
    return errno_error("AF_XDP needs Linux 5.14");
  auto made = load(Where::kGeneric);
  return made ? Status() : made.error();
}

// --- the others ----------------------------------------------------------------------------------

// By the program's number, which is of this boot's alone, whatever the network namespace.
Result<XdpProgram> XdpProgram::find(std::uint32_t id) {
  XdpProgram found;
  found.program_ = get_by_id(BPF_PROG_GET_FD_BY_ID, id);
  if (!found.program_) {
    return errno == EPERM ? errno_error("sharing a device's XDP program needs CAP_SYS_ADMIN")
                          : errno_error("the device's XDP program");
  }
  std::uint32_t maps[2] = {};
  bpf_prog_info info{};
  info.nr_map_ids = 2;
  info.map_ids = address_of(maps);
  if (!get_info(found.program_, &info)) return errno_error("the device's XDP program");
  if (std::strcmp(info.name, kName) != 0 || info.nr_map_ids != 2)
    return Error{EBUSY, "the device has an XDP program that is not ours"};
  for (const std::uint32_t map : maps) {
    Fd fd = get_by_id(BPF_MAP_GET_FD_BY_ID, map);
    bpf_map_info of{};
    if (!fd || !get_info(fd, &of)) return errno_error("a table of the XDP program");
    if (of.type == BPF_MAP_TYPE_XSKMAP) {
      found.sockets_ = std::move(fd);
    } else if (of.type == BPF_MAP_TYPE_HASH && of.value_size == sizeof(Owner)) {
      found.ports_ = std::move(fd);
    }
  }
  if (!found.sockets_ || !found.ports_)
    return Error{EBUSY, "the device has an XDP program that is not ours"};
  bpf_attr a{};
  while (bpf(BPF_LINK_GET_NEXT_ID, a) == 0) {
    const std::uint32_t link_id = a.next_id;
    Fd link = get_by_id(BPF_LINK_GET_FD_BY_ID, link_id);
    bpf_link_info of{};
    if (link && get_info(link, &of) && of.prog_id == id && of.type == BPF_LINK_TYPE_XDP) {
      found.link_ = std::move(link);
      return found;
    }
    a = {};
    a.start_id = link_id;
  }
  return Error{EAGAIN, "the device's XDP program has just gone"};
}

Result<XdpProgram> XdpProgram::join_once(Rtnetlink& kernel, int device, Where where) {
  const auto now = kernel.device(device);
  if (!now) return Error{ENODEV, "the device has gone"};
  if (now->xdp_program != 0) return find(now->xdp_program);
  auto made = load(where);
  if (!made) return made;
  if (auto s = made->attach(device, where); !s) return s.error();
  return made;
}

Status XdpProgram::usable(const NetDevice& device) {
  if (device.xdp_program == 0) return {};
  auto found = find(device.xdp_program);
  return found ? Status() : found.error();
}

// Another process may attach first, or the last one may just have left: ask again soon.
Result<XdpProgram> XdpProgram::join(Rtnetlink& kernel, int device, Where where) {
  for (int i = 0;; ++i) {
    auto joined = join_once(kernel, device, where);
    if (joined || i == kTries) return joined;
    const int err = joined.error().err;
    const auto now = kernel.device(device);
    const bool again = err == EAGAIN || err == ENOENT ||
                       ((err == EBUSY || err == EEXIST) && i == 0 && now && now->xdp_program != 0);
    if (!again) return joined;
    // Past the C library, whose call is a cancellation point: the node's mutex is held.
    const timespec pause{0, kBetweenNs};
    (void)sys::call(SYS_nanosleep, &pause, nullptr);
  }
}

// --- ports ---------------------------------------------------------------------------------------

// The socket first, which only one can enter; then whose frames are meant. In between, frames to a
// dead owner's address come here and are dropped.
Status XdpProgram::claim(std::uint16_t port, const Ipv4& ip, std::uint32_t queue, int xdp_socket) {
  if (auto s = update(sockets_, port, &xdp_socket, BPF_NOEXIST); !s) return s;
  Owner owner;
  std::memcpy(&owner.ip, ip.data(), sizeof owner.ip);
  owner.queue = queue;
  auto s = update(ports_, port, &owner, BPF_ANY);
  if (!s) release(port);
  return s;
}

void XdpProgram::release(std::uint16_t port) {
  std::uint32_t key = port;
  bpf_attr a{};
  a.map_fd = static_cast<std::uint32_t>(sockets_.get());
  a.key = address_of(&key);
  (void)bpf(BPF_MAP_DELETE_ELEM, a);
}

bool XdpProgram::attached() const {
  bpf_link_info info{};
  return get_info(link_, &info) && info.xdp.ifindex != 0;
}

}  // namespace clan::udp
