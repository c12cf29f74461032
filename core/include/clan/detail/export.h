// CLAN_EXPORT marks what libclan.so offers: a public class, or single functions of it that are
// defined in a .cc. Order: `class [[nodiscard]] CLAN_EXPORT X`.
#pragma once

#define CLAN_EXPORT __attribute__((visibility("default")))
