// Connections over exec: a program that is executed finds them on TCP.
#pragma once

namespace clan::preload {

/// Before exec: what stays open goes back to TCP, and this process leaves the slots of the rest.
void before_exec();
/// The exec has failed: this process is among the users of its slots again.
void use_slots_again();

/// A program is going to have what is not closed at exec, beside this process.
void take_all_back();

}  // namespace clan::preload
