// Connection: a Channel as the ORB wants to see it. On the client's side it is an active connection
// too.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "channel.h"

namespace clan::orb {

class Connection : public omni::giopConnection {
 public:
  Connection(std::shared_ptr<Channel> channel, std::string mine, std::string peers)
      : channel_(std::move(channel)), mine_(std::move(mine)), peers_(std::move(peers)) {}

  int Send(void* bytes, size_t size, const omni_time_t& deadline) override {
    return channel_->send(bytes, size, deadline);
  }
  int Recv(void* buffer, size_t size, const omni_time_t& deadline) override {
    return channel_->receive(buffer, size, deadline);
  }
  void Shutdown() override { channel_->shut_down(); }
  const char* myaddress() override { return mine_.c_str(); }
  const char* peeraddress() override { return peers_.c_str(); }
  void setSelectable(int now, _CORBA_Boolean data_in_buffer) override {
    channel_->set_selectable(now, data_in_buffer);
  }
  void clearSelectable() override { channel_->clear(); }
  _CORBA_Boolean isSelectable() override { return channel_->watched(); }
  _CORBA_Boolean Peek() override { return channel_->peek(); }

 protected:
  ~Connection() override { channel_->unwatch(); }
  const std::shared_ptr<Channel> channel_;

 private:
  const std::string mine_, peers_;
};

class ActiveConnection final : public omni::giopActiveConnection, public Connection {
 public:
  ActiveConnection(std::shared_ptr<Node> node, std::shared_ptr<Channel> channel, std::string mine,
                   std::string peers);
  omni::giopActiveCollection* registerMonitor() override;
  omni::giopConnection& getConnection() override { return *this; }

 private:
  ~ActiveConnection() override;
  std::shared_ptr<Node> node_;
  const std::uint32_t generation_ = Node::generation();
  bool registered_ = false;
};

}  // namespace clan::orb
