// Endpoint: where a server listens, and the watch over its connections.
//
// One thread of the ORB is in AcceptAndMonitor(). In addition to its own name the endpoint offers a
// service for each TCP port that the ORB of this process listens at, for references that name
// nothing else (corbaloc).
//
// Where it cannot listen, one that the program has asked for ends its ORB_init, as a TCP port that
// is taken would; one that has been added beside the program's own does nothing then.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "name.h"
#include "node.h"
#include "omni.h"
#include "watcher.h"

namespace clan::orb {

class Endpoint final : public omni::giopEndpoint {
 public:
  explicit Endpoint(const Name& name);

  const char* type() const override { return "giop:clan"; }
  const char* address() const override { return text_.c_str(); }
  const omni::orbServer::EndpointList* addresses() const override { return &addresses_; }
  _CORBA_Boolean publish(const omni::orbServer::PublishSpecs& specs, _CORBA_Boolean all_specs,
                         _CORBA_Boolean all_eps, omni::orbServer::EndpointList& published) override;
  _CORBA_Boolean Bind() override;
  omni::giopConnection* AcceptAndMonitor(omni::giopConnection::notifyReadable_t tell,
                                         void* cookie) override;
  void Poke() override;
  void Shutdown() override;

  /// Says, beside the ORB's own line, why it cannot have an endpoint that somebody asks for.
  static void refuse(const std::string& uri, const std::string& why);

  /// Offers the TCP ports that have been opened since. Any thread; cheap when there is nothing new.
  static void offer_ports();

 private:
  ~Endpoint() override;
  Status listen();
  void offer(std::uint16_t port, std::uint64_t inode);
  omni::giopConnection* accept_one();
  omni::giopConnection* made(Stream stream);

  const Name name_;
  const std::string text_;
  const std::uint32_t generation_ = Node::generation();
  omni::orbServer::EndpointList addresses_;
  std::shared_ptr<Node> node_;
  std::shared_ptr<Watcher> watcher_;
  std::optional<Listener> listener_;
  std::mutex ports_mutex_;
  std::map<std::string, Listener> ports_;  ///< by the name of the service
  std::atomic<bool> poked_{false};
};

}  // namespace clan::orb
