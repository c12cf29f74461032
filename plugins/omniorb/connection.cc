#include "connection.h"

#include "watcher.h"

namespace clan::orb {

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
