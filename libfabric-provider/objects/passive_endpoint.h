// PassiveEndpoint: receives clients' requests to connect, and asks the program about each. Where
// its part in a connection is shown: cm.h.
#pragma once

#include <clan/event_queue.h>
#include <clan/message.h>

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "objects/cm.h"
#include "system/address.h"
#include "system/provider.h"
#include "wait/wait.h"
#include "wire/wire.h"

namespace clan::ofi {

class Eq;

/// fi_passive_ep(). It belongs to the fabric, so it has an engine context of its own.
class PassiveEndpoint final : public fid_pep, public Source {
 public:
  using Face = fid_pep;
  static constexpr std::size_t kBacklog = 1024;  ///< where FI_BACKLOG has not said another
  static constexpr std::size_t kMostBacklog = 65536;
  /// clients that have introduced themselves, no more
  static constexpr std::size_t kMostSilent = 1024;
  static int open(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context);

  /// Its name, taken now if it has none yet. Not valid() where it cannot be had.
  SocketAddress address();

  // Source
  void make_progress() override;
  Result<int> descriptor() override;
  int packets() override;
  bool arm(SleepsIn where, std::uint32_t* look_again_ms) override;
  ~PassiveEndpoint() override;

 private:
  explicit PassiveEndpoint(Context context) : context_(std::move(context)) {}
  int start();
  bool progress();
  void refuse_unanswered();
  bool asked(PeerIndex from, const WireHeader& header, std::span<const std::byte> data);
  bool ask_program(const SocketAddress& client, PeerIndex from, const WireHeader& header,
                   std::span<const std::byte> data);
  void leaves(PeerIndex index);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static int control(fid_t id, int command, void* argument);
  static int getopt(fid_t id, int level, int name, void* value, std::size_t* length);
  static int set_name(fid_t id, void* address, std::size_t length);
  static int get_name(fid_t id, void* address, std::size_t* length);
  static int listen(fid_pep* pep);
  static int reject(fid_pep* pep, fid_t handle, const void* data, std::size_t length);
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;
  static fi_ops_cm connection_ops_;

  Held fabric_;
  Context context_;
  fi_info* info_ = nullptr;
  SocketAddress wanted_, address_;
  Eq* eq_ = nullptr;
  Held eq_held_;
  ForkMutex mutex_;  ///< guards what follows
  std::optional<MessageEndpoint> messages_;
  std::optional<EventQueue> events_;
  bool listening_ = false;
  struct Client {
    SocketAddress address;
    bool asked = false;  ///< which it does once
  };
  std::unordered_map<PeerIndex, Client> clients_;
  std::size_t silent_ = 0;  ///< clients that have not asked
  std::size_t backlog_ = kBacklog;
  std::shared_ptr<std::atomic<std::size_t>> unread_;  ///< requests that the program has not read
  std::shared_ptr<Unanswered> unanswered_;
};

}  // namespace clan::ofi
