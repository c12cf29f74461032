// TCP at user level: the stock lwIP (Debian package liblwip-dev), whose network interface is a
// U-Net endpoint. The kernel sees no packet.
//
//     unet_lwip                 forks; one end echoes and takes the stream of iperf, the other asks
//     unet_lwip server NAME     one end, here or on another host (CLAN_KEY at both)
//     unet_lwip client NAME     NAME, or udp:HOST/NAME
//
// Interface: lwIP calls output() with a packet, which goes from the area of the endpoint to the one
// peer. The main thread waits for packets and gives them to lwIP. lwIP's own thread runs its
// timers. All calls of lwIP need its lock, so the queues have one user at a time.
#include <clan/unet.h>
extern "C" {  // Debian's options declare functions of C
#include <lwip/opt.h>
}
#include <lwip/ip.h>
#include <lwip/tcp.h>
#include <lwip/tcpip.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKey = 20240602;  // both ends know it
constexpr std::uint32_t kPackets = 128, kPacketBytes = 2048, kMtu = 1500;
constexpr std::uint16_t kEchoPort = 7, kIperfPort = 5001;
constexpr std::uint32_t kEchoes = 2000;
constexpr std::size_t kStreamBytes = 64u << 20;
constexpr std::string_view kDigits = "0123456789";  // what iperf sends

static void check(bool well, const char* call) {
  if (well) return;
  std::fprintf(stderr, "unet_lwip: %s failed\n", call);
  std::_Exit(1);
}

/// The rest of this block has the lock of lwIP.
struct Locked {
  Locked() { LOCK_TCPIP_CORE(); }
  ~Locked() { UNLOCK_TCPIP_CORE(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

// --- the network interface -----------------------------------------------------------------------

/// The area: buffers for packets that arrive, then one place for each entry of the send queue.
class Interface {
 public:
  Interface(const char* service, const char* peer, std::uint8_t host) {
    auto node = clan::unet::Node::open();
    check(bool(node), "unet_open");
    node_.emplace(std::move(*node));
    unet_endpoint_options options{};
    options.service = service;
    options.flags = UNET_THREADS;  // lwIP's thread sends, too
    options.send_entries = options.free_entries = options.receive_entries = kPackets;
    options.buffer_bytes = kPacketBytes;
    options.area_bytes = std::uint64_t{2} * kPackets * kPacketBytes;
    auto endpoint = clan::unet::Endpoint::create(*node_, options);
    check(bool(endpoint), "unet_create");
    endpoint_.emplace(std::move(*endpoint));
    for (std::uint32_t i = 0; i < kPackets; ++i) unet_free_push(get(), i * kPacketBytes);
    const int error = peer == nullptr ? unet_accept(get(), 1, kKey)
                                      : unet_connect_service(get(), 1, peer, 1, kKey, 10'000);
    check(error == 0, "the channel to the peer");
    ::tcpip_init([](void*) {}, nullptr);
    const Locked lock;
    ip4_addr_t address, mask, gateway;
    IP4_ADDR(&address, 10, 0, 0, host);
    IP4_ADDR(&mask, 255, 255, 255, 0);
    ip4_addr_set_zero(&gateway);
    check(::netif_add(&netif_, &address, &mask, &gateway, this, set_up, ::ip_input) != nullptr,
          "netif_add");
    ::netif_set_link_up(&netif_);
    ::netif_set_up(&netif_);
  }
  ~Interface() {
    const Locked lock;
    ::netif_remove(&netif_);
  }
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

  /// Waits for packets and gives them to lwIP. False: the peer has closed the channel.
  bool take() {
    check(unet_wait(get(), -1) == 0, "unet_wait");
    const Locked lock;
    while (const unet_receive* d = unet_receive_next(get())) {
      if ((d->flags & UNET_CLOSED) != 0) return false;
      give(*d);
      unet_receive_take(get());
    }
    return true;
  }

 private:
  static err_t set_up(netif* made) {
    made->name[0] = 'u';
    made->name[1] = 'n';
    made->mtu = kMtu;
    made->output = output;
    return ERR_OK;
  }

  void give(const unet_receive& d) {
    const unsigned char* from = d.u.data;
    if (d.buffers != 0) from = get()->area + d.u.buffer[0];
    pbuf* const packet = ::pbuf_alloc(PBUF_RAW, static_cast<std::uint16_t>(d.bytes), PBUF_RAM);
    if (packet != nullptr && d.status == 0) {
      ::pbuf_take(packet, from, static_cast<std::uint16_t>(d.bytes));
      if (netif_.input(packet, &netif_) != ERR_OK) ::pbuf_free(packet);
    } else if (packet != nullptr) {
      ::pbuf_free(packet);
    }
    if (d.buffers != 0) unet_free_push(get(), d.u.buffer[0]);
  }

  /// Without a free place the packet is dropped, and TCP sends it again.
  static err_t output(netif* of, pbuf* packet, const ip4_addr_t*) {
    unet_endpoint* const e = static_cast<Interface*>(of->state)->get();
    while (unet_send_done(e) != nullptr) unet_send_take(e);
    unet_send* const d = unet_send_next(e);
    if (d == nullptr || packet->tot_len > kPacketBytes) return ERR_MEM;
    const auto place = static_cast<std::uint64_t>(d - e->sends);
    d->tag = 1;
    d->flags = 0;
    d->bytes = packet->tot_len;
    d->pieces = packet->tot_len > UNET_INLINE;
    void* to = d->u.data;
    if (d->pieces != 0) {
      d->u.piece[0] = {(kPackets + place) * kPacketBytes, packet->tot_len, 0};
      to = e->area + d->u.piece[0].at;
    }
    ::pbuf_copy_partial(packet, to, packet->tot_len, 0);
    unet_send_push(e);
    return unet_doorbell(e) == 0 ? ERR_OK : ERR_IF;
  }

  unet_endpoint* get() const { return endpoint_->get(); }
  std::optional<clan::unet::Node> node_;
  std::optional<clan::unet::Endpoint> endpoint_;
  netif netif_{};
};

// --- programs over TCP, by the raw interface of lwIP ---------------------------------------------

/// One connection, or the listener of a server.
struct Connection {
  tcp_pcb* pcb = nullptr;
  bool open = false, over = false;
  std::size_t received = 0, sent = 0, to_send = 0;
};

/// The contents of every stream here: the digits, in turn.
static bool is_right(const pbuf* data, std::size_t at) {
  for (; data != nullptr; data = data->next) {
    const auto* bytes = static_cast<const char*>(data->payload);
    for (std::uint16_t i = 0; i < data->len; ++i, ++at)
      if (bytes[i] != kDigits[at % kDigits.size()]) return false;
  }
  return true;
}

/// Sends what there is room for.
static void send(Connection& c) {
  static const std::string many = [] {
    std::string text;
    while (text.size() < 16'000) text += kDigits;
    return text;
  }();
  while (c.sent < c.to_send) {
    const char* const from = many.data() + c.sent % kDigits.size();
    const std::size_t room = std::min<std::size_t>(tcp_sndbuf(c.pcb), many.size() / 2);
    const auto n = static_cast<std::uint16_t>(std::min(c.to_send - c.sent, room));
    if (n == 0 || ::tcp_write(c.pcb, from, n, 0) != ERR_OK) break;
    c.sent += n;
  }
  ::tcp_output(c.pcb);
}

static err_t take_echo(void*, tcp_pcb* pcb, pbuf* data, err_t) {
  if (data == nullptr) return ::tcp_close(pcb);
  for (const pbuf* part = data; part != nullptr; part = part->next)
    check(::tcp_write(pcb, part->payload, part->len, TCP_WRITE_FLAG_COPY) == ERR_OK, "an echo");
  ::tcp_recved(pcb, data->tot_len);
  ::pbuf_free(data);
  return ::tcp_output(pcb);
}

/// The end of a client of the echo, and of the server of iperf, which says by its close that it has
/// all.
static err_t take_stream(void* of, tcp_pcb* pcb, pbuf* data, err_t) {
  auto& c = *static_cast<Connection*>(of);
  if (data == nullptr) {
    c.over = true;
    return ::tcp_close(pcb);
  }
  check(is_right(data, c.received), "the contents of a stream");
  c.received += data->tot_len;
  ::tcp_recved(pcb, data->tot_len);
  ::pbuf_free(data);
  return ERR_OK;
}

static tcp_pcb* listen(std::uint16_t port, tcp_accept_fn accept) {
  tcp_pcb* const pcb = ::tcp_new();
  check(pcb != nullptr && ::tcp_bind(pcb, IP_ADDR_ANY, port) == ERR_OK, "tcp_bind");
  tcp_pcb* const listener = ::tcp_listen(pcb);
  ::tcp_accept(listener, accept);
  return listener;
}

static void serve(Interface& interface) {
  static Connection stream;
  {
    const Locked lock;
    listen(kEchoPort, [](void*, tcp_pcb* pcb, err_t) {
      tcp_nagle_disable(pcb);
      ::tcp_recv(pcb, take_echo);
      return err_t{ERR_OK};
    });
    listen(kIperfPort, [](void*, tcp_pcb* pcb, err_t) {
      stream = {};
      ::tcp_arg(pcb, &stream);
      ::tcp_recv(pcb, take_stream);
      return err_t{ERR_OK};
    });
  }
  while (interface.take()) {
  }
}

static void connect(Interface& interface, Connection& c, std::uint16_t port) {
  {
    const Locked lock;
    ip_addr_t server;
    IP_ADDR4(&server, 10, 0, 0, 1);
    c.pcb = ::tcp_new();
    check(c.pcb != nullptr, "tcp_new");
    ::tcp_arg(c.pcb, &c);
    tcp_nagle_disable(c.pcb);
    ::tcp_recv(c.pcb, take_stream);
    ::tcp_err(c.pcb, [](void*, err_t) { check(false, "a connection"); });
    const auto connected = [](void* of, tcp_pcb*, err_t) {
      static_cast<Connection*>(of)->open = true;
      return err_t{ERR_OK};
    };
    check(::tcp_connect(c.pcb, &server, port, connected) == ERR_OK, "tcp_connect");
  }
  while (!c.open) check(interface.take(), "the channel to the peer");
}

static void close(Interface& interface, Connection& c) {
  {
    const Locked lock;
    check(::tcp_shutdown(c.pcb, 0, 1) == ERR_OK, "tcp_shutdown");
  }
  while (!c.over) check(interface.take(), "the channel to the peer");
}

static void ask_for_echoes(Interface& interface) {
  Connection c;
  connect(interface, c, kEchoPort);
  const auto begin = Clock::now();
  for (std::uint32_t i = 0; i < kEchoes; ++i) {
    {
      const Locked lock;
      c.to_send += kDigits.size();
      send(c);
    }
    while (c.received < c.to_send) check(interface.take(), "an echo");
  }
  const std::chrono::duration<double, std::micro> us = Clock::now() - begin;
  std::printf("echo: %.1f us a round trip\n", us.count() / kEchoes);
  close(interface, c);
}

static void stream(Interface& interface) {
  Connection c;
  connect(interface, c, kIperfPort);
  const auto begin = Clock::now();
  {
    const Locked lock;
    c.to_send = kStreamBytes;
    ::tcp_sent(c.pcb, [](void* of, tcp_pcb*, std::uint16_t) {
      send(*static_cast<Connection*>(of));
      return err_t{ERR_OK};
    });
    send(c);
  }
  while (c.sent < c.to_send) check(interface.take(), "a stream");
  close(interface, c);
  const std::chrono::duration<double> s = Clock::now() - begin;
  std::printf("iperf: %.0f MB/s\n", static_cast<double>(kStreamBytes) / s.count() / 1e6);
}

static int server(const char* name, int ready) {
  Interface interface(name, nullptr, 1);
  if (ready >= 0 && ::write(ready, "", 1) != 1) return 1;
  serve(interface);
  return 0;
}

static int client(const char* name) {
  Interface interface(nullptr, name, 2);
  ask_for_echoes(interface);
  stream(interface);
  return 0;
}

int main(int argc, char** argv) {
  const std::string_view role = argc == 3 ? argv[1] : "";
  if (role == "server") return server(argv[2], -1);
  if (role == "client") return client(argv[2]);
  const std::string name = "unet-lwip-" + std::to_string(::getpid());
  int ready[2], status = 1;
  char byte;
  if (argc != 1 || ::pipe(ready) != 0) return 1;
  if (::fork() == 0) {
    ::close(ready[0]);
    std::_Exit(server(name.c_str(), ready[1]));
  }
  ::close(ready[1]);
  if (::read(ready[0], &byte, 1) != 1) return 1;
  const int result = client(name.c_str());
  ::wait(&status);
  return result != 0 || status != 0;
}
