// What the peer of a U-Net endpoint may say, at any time, between calls of the program: messages of
// wire.h, whole or in part, of channels that are there or not.
#include <clan/message.h>
#include <unet.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "endpoint.h"
#include "input.h"

using namespace clan::unet::library;

namespace {

struct World {
  unet_node* node = nullptr;
  std::optional<clan::Context> peer;
  World() {
    auto made = clan::Context::create();
    if (!made || unet_open(nullptr, &node) != 0) std::abort();
    peer.emplace(std::move(*made));
  }
};

World& world() {
  static World w;
  return w;
}

class Peer {
 public:
  explicit Peer(const unet_address& there)
      : messages_(*clan::MessageEndpoint::create(*world().peer)),
        to_(*messages_.connect(clan::Address{{there.node}, there.endpoint, there.uid}, 10'000)) {}

  // Mostly of a kind that there is and of its size.
  void say(clan::fuzz::Input& input) {
    switch (input.byte() % 8) {
      case 0: {
        ConnectRecord r = some<ConnectRecord>(input, Kind::kConnect);
        r.endpoint %= 2;
        r.tag %= 4;
        r.key %= 2;
        return put(input, r);
      }
      case 1: {
        AcceptRecord r = some<AcceptRecord>(input, Kind::kAccept);
        r.to %= 4;
        r.serial %= 4;
        return put(input, r);
      }
      case 2: {
        RefuseRecord r = some<RefuseRecord>(input, Kind::kRefuse);
        r.to %= 4;
        r.serial %= 4;
        return put(input, r);
      }
      case 3: {
        Head head{Kind::kClose, {}, input.byte() % 4u};
        return put(input, head);
      }
      case 4: {
        DirectRecord r = some<DirectRecord>(input, Kind::kDirect);
        r.offset = input.number(64);
        r.bytes = static_cast<std::uint32_t>(input.number(64));
        return put(input, r);
      }
      case 5: return send(input.bytes(input.byte()));
      default: {
        std::byte message[sizeof(Head) + 40'000] = {};
        const Head head{Kind::kData, {}, input.byte() % 4u};
        std::memcpy(message, &head, sizeof head);
        return send({message, sizeof head + input.take<std::uint16_t>() % 40'000u});
      }
    }
  }

  void listen() {
    while (messages_.peek().ok()) messages_.drop();
  }

 private:
  template <typename Record>
  static Record some(clan::fuzz::Input& input, Kind kind) {
    auto record = input.take<Record>();
    if (input.byte() % 8 != 0) record.head.kind = kind;
    record.head.number %= 4;
    return record;
  }
  template <typename Record>
  void put(clan::fuzz::Input& input, const Record& record) {
    const auto bytes = std::as_bytes(std::span(&record, 1));
    send(input.byte() % 16 == 0 ? bytes.first(bytes.size() / 2) : bytes);
  }
  void send(std::span<const std::byte> bytes) { (void)messages_.try_send(to_, bytes, {}); }

  clan::MessageEndpoint messages_;
  clan::PeerIndex to_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  clan::fuzz::Input input(data, size);
  unet_endpoint_options options{};
  options.area_bytes = 1 << 16;
  options.receive_entries = 8;
  options.free_entries = 8;
  options.flags = input.byte() % 2 == 0 ? UNET_DIRECT_AREA : 0;
  unet_endpoint* e = nullptr;
  if (unet_create(world().node, &options, &e) != 0) std::abort();
  for (std::uint32_t tag = 0; tag < 3; ++tag) (void)unet_accept(e, tag, tag % 2);
  const unet_address there = unet_address_of(e);
  {
    Peer peer(there);
    while (!input.empty()) {
      const std::uint8_t what = input.byte();
      switch (what % 8) {
        case 0: (void)unet_free_push(e, what / 8 * 4096u); break;
        case 1: {
          if (unet_send* d = unet_send_next(e); d != nullptr) {
            *d = {};
            d->tag = what / 8 % 4u;
            d->flags = what / 64;
            d->pieces = 1;
            d->u.piece[0] = {0, what * 64u, 0};
            unet_send_push(e);
          }
          (void)unet_doorbell(e);
          while (unet_send_done(e) != nullptr) unet_send_take(e);
          break;
        }
        case 2: (void)unet_close_tag(e, what / 8 % 4u); break;
        case 3: (void)unet_accept(e, what / 8 % 4u, what / 32 % 2u); break;
        case 4: peer.listen(); break;
        default:
          peer.say(input);
          (void)unet_poll(e);
          while (what % 2 == 0 && unet_receive_next(e) != nullptr) unet_receive_take(e);
      }
    }
  }
  unet_destroy(e);
  return 0;
}
