// clan-rpcgen: makes C stubs for calls through shared memory out of an .x file.
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "model.h"
#include "preprocess.h"

namespace {

constexpr const char* kUsage =
    "Usage: clan-rpcgen [--check] [-D NAME[=VALUE]]... [-I DIRECTORY]... [-o PREFIX] FILE.x\n"
    "Makes PREFIX.h, PREFIX_slot.c, PREFIX_clnt.c and PREFIX_svc.c, C and C++ alike, for programs "
    "that link "
    "with\n"
    "libclanshrimp. PREFIX is FILE, without directory, unless it is given.\n"
    "  --check   only reads the file and says what is wrong with it\n"
    "  -D, -I    for the C preprocessor (cpp), which reads the file first as with rpcgen\n";

bool write_file(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out)
    std::cerr << "clan-rpcgen: " << file << " cannot be written: " << std::strerror(errno) << "\n";
  return static_cast<bool>(out);
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

int main(int argc, char** argv) {
  std::string source, prefix;
  std::vector<std::string> options;
  bool check = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "-h" || word == "--help") {
      std::cout << kUsage;
      return 0;
    }
    if (word == "--check") {
      check = true;
    } else if (word == "-o" && i + 1 < argc) {
      prefix = argv[++i];
    } else if ((word == "-D" || word == "-I") && i + 1 < argc) {
      options.push_back(word + argv[++i]);
    } else if (word.size() > 2 && (word.starts_with("-D") || word.starts_with("-I"))) {
      options.push_back(word);
    } else if (!word.starts_with("-") && source.empty()) {
      source = word;
    } else {
      std::cerr << "clan-rpcgen: " << word << " is not understood\n" << kUsage;
      return 2;
    }
  }
  if (source.empty() || access(source.c_str(), R_OK) != 0) {
    std::cerr << (source.empty() ? std::string(kUsage)
                                 : "clan-rpcgen: " + source + " cannot be read\n");
    return 2;
  }
  std::string text;
  if (!clan::rpcgen::preprocess(source, options, &text)) return 1;
  try {
    const auto words = clan::rpcgen::words_of(source, text);
    clan::rpcgen::Interface interface = clan::rpcgen::parse(words);
    const clan::rpcgen::Model model(std::move(interface));
    if (check) return 0;
    const std::uint64_t hash = clan::rpcgen::hash_of(words);
    if (prefix.empty()) prefix = base_name(source).substr(0, base_name(source).rfind('.'));
    const std::string header = base_name(prefix) + ".h";
    std::string guard = "CLAN_RPCGEN_" + base_name(prefix) + "_H_";
    for (char& c : guard) {
      const auto byte = static_cast<unsigned char>(c);
      c = std::isalnum(byte) != 0 ? static_cast<char>(std::toupper(byte)) : '_';
    }
    const bool written = write_file(prefix + ".h", header_of(model, guard)) &&
                         write_file(prefix + "_slot.c", codec_of(model, header)) &&
                         write_file(prefix + "_clnt.c", client_of(model, header, hash)) &&
                         write_file(prefix + "_svc.c", server_of(model, header, hash));
    return written ? 0 : 1;
  } catch (const clan::rpcgen::Fault& fault) {
    std::cerr << fault.what() << "\n";
    return 1;
  }
}
