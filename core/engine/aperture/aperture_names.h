// Names of apertures: how a peer that knows only a number gets the cookie.
//
// Two out-of-band messages, answered by the owner's driver thread: kOobLookUp{name} goes to the
// node, not to an endpoint of it; kOobFound{err, aperture} goes back to the process that asked.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "clan/aperture.h"
#include "engine/context/context_core.h"

namespace clan::engine {

/// What a node is asked, not an endpoint of it.
constexpr std::uint32_t kOobLookUp = kOobInternal | 6;
constexpr std::uint32_t kOobFound = kOobInternal | 7;

/// Payload of kOobLookUp.
struct LookUpRecord {
  std::uint64_t name = 0;
};

/// Payload of kOobFound.
struct FoundRecord {
  std::int32_t err = 0;
  std::uint32_t reserved = 0;
  NamedAperture aperture;
};
static_assert(sizeof(FoundRecord) <= kOobPayload);

/// Asks `owner`, and waits for its answer.
Result<NamedAperture> look_up_aperture(const std::shared_ptr<ContextCore>& context, NodeId owner,
                                       uid_t uid, std::uint64_t name, std::uint64_t deadline_ns);

/// Driver thread: answers a kOobLookUp.
void answer_look_up(ContextCore& context, nic::Link& link, const OobMessage& message);

}  // namespace clan::engine
