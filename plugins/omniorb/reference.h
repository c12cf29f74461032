// References: our tagged component in the profiles that this process makes, and the addresses that
// it finds in those of others.
//
// Component: tag 0x434c414e, an encapsulation:
//     ulong version (2), ulonglong host id, string "<uid>-<word>", sequence<string> links
//     ("udp:HOST:PORT")
// Later versions add fields behind; readers take what they know. Version 1 had no links.
#pragma once

#include "name.h"
#include "omni.h"

namespace clan::orb {

constexpr CORBA::ULong kComponentTag = 0x434c'414e;  ///< "CLAN", private use

/// References made from now on name this endpoint.
void publish_in_references(const Name& name);
/// At the end of an ORB.
void forget_published();

/// Interceptors, with the ORB that begins.
void install_interceptors();

}  // namespace clan::orb
