// Node: one network interface of the process: a context of the engine, the port that its emulated
// endpoints share, and the page where `clan stat` finds what endpoints have counted.
//
// The library is in clan::unet::library: clan::unet is what programs see (clan/unet.h).
#pragma once

#include <clan/context.h>
#include <clan/face/translator.h>
#include <clan/face/unet_face.h>
#include <unet.h>

#include <memory>
#include <mutex>
#include <optional>

namespace clan::unet::library {

class Port;

/// Changes in a forked child, which does not use its parent's nodes.
std::uint32_t generation();

/// Counters of an endpoint, in the page as long as that has room.
UnetRow* take_row();
void give_back(UnetRow* row);
void count_hostile();

}  // namespace clan::unet::library

struct unet_node {
  explicit unet_node(clan::Context made);
  ~unet_node();
  clan::Context context;
  const std::uint32_t generation;
  /// Makes the translator.
  clan::Status translate();
  std::mutex mutex;                            ///< the making of these
  std::optional<clan::Translator> translator;  ///< of endpoints whose descriptors name addresses
  std::shared_ptr<clan::unet::library::Port> shared;
};
