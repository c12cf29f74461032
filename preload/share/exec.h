// Connections over exec: the new program finds them on TCP.
#pragma once

namespace clan::preload {

/// Takes connections that stay open over exec back to TCP.
void take_all_back();
/// Does the same before exec, and makes this process leave all its slots.
void before_exec();
/// Makes this process use its slots again, after an exec that has failed.
void use_slots_again();

}  // namespace clan::preload
