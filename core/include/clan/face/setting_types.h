// The interposer's settings, CLAN_* in the environment or a file, and their meaning for connections
// and contexts. setting_parser.h: how one is written; settings.h: where they are read. Any thread;
// only options made of settings take memory.
#pragma once

#include <clan/context.h>
#include <clan/face/shared_directory.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace clan {

struct Ports {
  static constexpr int kMost = 64;
  struct Range {
    std::uint16_t first, last;
  };
  Range ranges[kMost] = {};
  int count = 0;
  bool contains(std::uint16_t port) const {
    for (int i = 0; i < count; ++i) {
      if (port >= ranges[i].first && port <= ranges[i].last) return true;
    }
    return false;
  }
};

struct Settings {
  bool disable = false;  ///< asked for, or something could not be understood
  Ports only;            ///< empty: all
  Ports except;
  static constexpr int kMostUids = 16;
  uid_t uids[kMostUids] = {};  ///< besides the process's
  int uid_count = 0;
  /// CLAN_DIR.
  static constexpr std::size_t kMostDirectory = kMostSharedDirectory;
  char directory[kMostDirectory + 1] = {};
  /// CLAN_MEMORY: bytes that the pipes of a user may take, 0: see pipe_memory.h
  std::uint64_t memory = 0;
  /// CLAN_KEY: a KeyFile, or empty if unusable. Read again when a Context is made.
  static constexpr std::size_t kMostKeyPath = 1023;
  char key_file[kMostKeyPath + 1] = {};
  bool key_is_wrong = false;
  bool looks_at_key = true;  ///< false: settings of another process, or that are obeyed much later
  NetworkOptions::Mode network_mode = NetworkOptions::Mode::kEncrypt;  ///< CLAN_NETWORK_MODE
  bool names_network_mode = false;
  bool net = false;  ///< CLAN_NET: connections to other hosts move, too
  /// CLAN_NETWORK_PORT: of the directories of this host and of others
  std::uint16_t network_port = NetworkOptions::kDirectoryPort;
  NetworkOptions::Packets network_packets =
      NetworkOptions::Packets::kSockets;  ///< CLAN_NETWORK_PACKETS

  /// Other hosts, for faces: enabled by either setting, unless the key is wrong. Without a key, a
  /// mode that needs one makes Context::create() fail.
  NetworkOptions network_options() const {
    NetworkOptions network;
    network.enabled = !key_is_wrong && (key_file[0] != 0 || names_network_mode);
    network.mode = network_mode;
    network.packets = network_packets;
    network.directory_port = network_port;
    network.key_file = key_file;
    return network;
  }
  /// Returns the options for a face's Context: the users and the network.
  ContextOptions context_options() const {
    ContextOptions options;
    options.allow_uids.assign(uids, uids + uid_count);
    options.network = network_options();
    return options;
  }
  bool has_directory() const { return directory[0] != 0; }
  bool names_uid(uid_t uid) const {
    for (int i = 0; i < uid_count; ++i) {
      if (uids[i] == uid) return true;
    }
    return false;
  }
  bool leaves_out(std::uint16_t local, std::uint16_t remote) const {
    return only.count != 0 && !only.contains(local) && !only.contains(remote);
  }
  bool excepts(std::uint16_t local, std::uint16_t remote) const {
    return except.contains(local) || except.contains(remote);
  }
};

/// What may stand in the environment and in a file.
struct SettingName {
  const char* name;
  bool of_network = false;  ///< it is in Settings::network_options()
};
inline constexpr SettingName kSettings[] = {{"CLAN_ONLY"},
                                            {"CLAN_EXCEPT"},
                                            {"CLAN_UIDS"},
                                            {"CLAN_DIR"},
                                            {"CLAN_MEMORY"},
                                            {"CLAN_KEY", true},
                                            {"CLAN_NETWORK_MODE", true},
                                            {"CLAN_NETWORK_PACKETS", true},
                                            {"CLAN_NETWORK_PORT", true},
                                            {"CLAN_NET"},
                                            {"CLAN_DISABLE"}};
/// Null: there is none of that name.
inline const SettingName* find_setting(const char* name) {
  for (const SettingName& known : kSettings) {
    if (std::strcmp(known.name, name) == 0) return &known;
  }
  return nullptr;
}

template <typename Value>
struct NamedValue {
  const char* name;
  Value value;
};
/// What CLAN_NETWORK_MODE may be, and CLAN_NETWORK_PACKETS.
inline constexpr NamedValue<NetworkOptions::Mode> kNetworkModes[] = {
    {"off", NetworkOptions::Mode::kOff},
    {"integrity", NetworkOptions::Mode::kIntegrity},
    {"encrypt", NetworkOptions::Mode::kEncrypt}};
inline constexpr NamedValue<NetworkOptions::Packets> kNetworkPackets[] = {
    {"sockets", NetworkOptions::Packets::kSockets},
    {"xdp", NetworkOptions::Packets::kXdp},
    {"auto", NetworkOptions::Packets::kAuto}};

/// What a program must be allowed to write into files (RLIMIT_FSIZE), to have pipes.
constexpr std::uint64_t kFileBytes = 64u << 20;

/// A settings file has fewer bytes.
constexpr std::size_t kSettingsFile = 8192;
constexpr char kSettingsFileTooLong[] = "it has more than 8191 bytes";

}  // namespace clan
