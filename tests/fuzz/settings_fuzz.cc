// Fuzzes the parser of settings: a file's text, what the environment says, and a file with a key.
// Whatever they are, each list keeps within its bounds, and whatever is not understood leaves
// everything with the kernel and is described in the room that there is.
//
// Input: texts with a 0 behind each: the settings file, the values of kSettings in their order,
// the file with the key.
#include <clan/face/settings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

namespace {

using clan::Ports;
using clan::Settings;

constexpr std::size_t kNames = std::size(clan::kSettings);

void expect(bool holds) {
  if (!holds) std::abort();
}

void check(const Ports& ports) {
  expect(ports.count >= 0 && ports.count <= Ports::kMost);
  for (int i = 0; i < ports.count; ++i) {
    const auto& range = ports.ranges[i];
    expect(range.first != 0 && range.first <= range.last);
    expect(ports.contains(range.first) && ports.contains(range.last));
  }
}

void check(const Settings& settings) {
  check(settings.only);
  check(settings.except);
  expect(settings.uid_count >= 0 && settings.uid_count <= Settings::kMostUids);
  expect(::strnlen(settings.directory, sizeof settings.directory) <= clan::kMostSharedDirectory);
  expect(::strnlen(settings.key_file, sizeof settings.key_file) <= Settings::kMostKeyPath);
}

/// Describes into memory of exactly that size: AddressSanitizer sees the byte behind.
void describe(const clan::WrongSetting& wrong) {
  for (const std::size_t size : {1u, 80u, 768u}) {
    const auto text = std::make_unique<char[]>(size);
    clan::describe(wrong, "/etc/clan.conf", text.get(), size);
    expect(::strnlen(text.get(), size) < size);
  }
  (void)wrong.loses();
}

void take_all(const std::string& file, const std::array<std::string, kNames>& values) {
  // As config() has it: a settings file is shorter than this.
  std::unique_ptr<char[]> text;
  if (file.size() < clan::kSettingsFile) {
    text = std::make_unique<char[]>(file.size() + 1);
    std::memcpy(text.get(), file.c_str(), file.size() + 1);
  }
  Settings settings;
  int refused = 0;
  const auto environment = [&](const char* name) -> const char* {
    for (std::size_t i = 0; i < kNames; ++i) {
      if (std::strcmp(name, clan::kSettings[i].name) == 0)
        return values[i].empty() ? nullptr : values[i].c_str();
    }
    return nullptr;
  };
  const bool wrong =
      clan::take_settings(text.get(), environment, &settings, [&](const clan::WrongSetting& why) {
        ++refused;
        describe(why);
      });
  expect(!wrong || (settings.disable && refused > 0));
  check(settings);
  (void)settings.context_options();
  (void)settings.leaves_out(80, 443);
  (void)settings.excepts(80, 443);
}

/// What is accepted is what was written.
void read_size(const std::string& text) {
  std::uint64_t bytes = 0;
  clan::SettingFault fault;
  if (!clan::parse_memory(text.c_str(), &bytes, &fault)) return;
  char* unit = nullptr;
  unsigned __int128 wanted = std::strtoull(text.c_str(), &unit, 10);
  const char* const units = "KMG";
  if (*unit != 0) wanted <<= 10 * (std::strchr(units, *unit) - units + 1);
  expect(wanted == bytes);
}

void read_key(std::string_view content) {
  static const int fd = static_cast<int>(::memfd_create("fuzz-key", MFD_CLOEXEC));
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0 || ::fchmod(fd, 0600) != 0 || ::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) {
    std::abort();
  }
  clan::KeyFile file;
  if (file.read(path.c_str()).ok()) {
    expect(file.key().size() >= clan::kLeastKeyBytes && file.key().size() <= clan::kMostKeyBytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view left(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const std::string_view text = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(left.size(), text.size() + 1));
    return text;
  };
  const std::string file(next());
  std::array<std::string, kNames> values;
  for (std::string& value : values) value = next();
  take_all(file, values);
  read_size(values[4]);  // of CLAN_MEMORY
  read_key(left);
  return 0;
}
