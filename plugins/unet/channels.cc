// Tags: registered before they are used, found for each send, and ended by either side.
#include "endpoint.h"

namespace clan::unet::library {

Channel* Endpoint::find(std::uint32_t tag) {
  if (last_ != nullptr && last_->tag == tag) return last_;
  const auto found = channels_.find(tag);
  if (found == channels_.end()) return nullptr;
  return last_ = found->second.get();
}

int Endpoint::accept(std::uint32_t tag, std::uint64_t key) {
  if (find(tag) != nullptr) return EEXIST;
  auto channel = std::make_unique<Channel>(*this, tag);
  channel->key = key;
  channels_.emplace(tag, std::move(channel));
  row_->channels.store(static_cast<std::uint32_t>(channels_.size()),
                       std::memory_order_relaxed);  // relaxed: for people
  return 0;
}

int Endpoint::connect(std::uint32_t tag, Result<PeerIndex> peer, ConnectRecord record) {
  if (!peer) return peer.error().err;
  if (const int error = accept(tag, record.key); error != 0) return error;
  record.area = cookie_;
  const Status asked = port_->connect(*find(tag), *peer, record);
  if (!asked) (void)close(tag);
  return asked ? 0 : asked.error().err;
}

int Endpoint::close(std::uint32_t tag) {
  Channel* const channel = find(tag);
  if (channel == nullptr) return ENOENT;
  port_->close(*channel);
  if (!channel->told) --untold_;
  last_ = nullptr;
  channels_.erase(tag);
  row_->channels.store(static_cast<std::uint32_t>(channels_.size()),
                       std::memory_order_relaxed);  // relaxed: for people
  return 0;
}

void Endpoint::over(Channel& channel, int reason) {
  channel.state = Channel::State::kOver;
  channel.reason = reason;
  channel.direct.reset();
  channel.told = false;
  ++untold_;
  tell_closed();
}

// As far as there are places in the receive queue; the others wait for the next unet_poll().
void Endpoint::tell_closed() {
  if (untold_ == 0) return;
  for (auto& [tag, channel] : channels_) {
    if (channel->told || places() == 0) continue;
    channel->told = true;
    --untold_;
    unet_receive d{};
    d.tag = tag;
    d.status = channel->reason;
    d.flags = UNET_CLOSED;
    push(d);
  }
}

}  // namespace clan::unet::library
