// What stands in front of the C library's functions: the symbols of calls.def, and nothing else.
#pragma once

#define CLAN_INTERPOSE extern "C" __attribute__((visibility("default")))
