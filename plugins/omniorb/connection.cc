#include "connection.h"

#include <utility>

#include "watcher.h"

namespace clan::orb {

Connection::Connection(std::shared_ptr<Channel> channel, std::string mine, std::string peers)
    : channel_(std::move(channel)), mine_(std::move(mine)), peers_(std::move(peers)) {}

Connection::~Connection() { channel_->unwatch(); }

int Connection::Send(void* bytes, size_t size, const omni_time_t& deadline) {
  return channel_->send(bytes, size, deadline);
}

int Connection::Recv(void* buffer, size_t size, const omni_time_t& deadline) {
  return channel_->receive(buffer, size, deadline);
}

void Connection::Shutdown() { channel_->shut_down(); }

void Connection::setSelectable(int now, _CORBA_Boolean data_in_buffer) {
  channel_->set_selectable(now, data_in_buffer);
}

ActiveConnection::ActiveConnection(std::shared_ptr<Node> node, std::shared_ptr<Channel> channel,
                                   std::string mine, std::string peers)
    : Connection(std::move(channel), std::move(mine), std::move(peers)), node_(std::move(node)) {}

ActiveConnection::~ActiveConnection() {
  if (generation_ != Node::generation()) {
    new std::shared_ptr<Node>(std::move(node_));  // the parent's: not to be ended here
  } else if (registered_) {
    channel_->unwatch();
    node_->active().remove();
  }
}

omni::giopActiveCollection* ActiveConnection::registerMonitor() {
  if (!registered_ && generation_ == Node::generation()) {
    registered_ = node_->active().add(node_->context(), *channel_, this);
  }
  return &node_->active();
}

}  // namespace clan::orb
