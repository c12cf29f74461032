#include "share/loader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace clan::preload {
namespace {

char preloads[] = "LD_PRELOAD=/lib/libclan-preload.so", home[] = "HOME=/";
char* const with[] = {home, preloads, nullptr};
char* const without[] = {home, nullptr};

/// A program with the loader of musl, and a script that it interprets.
struct MuslPrograms : testing::Test {
  MuslPrograms() {
    std::ifstream shell("/bin/sh", std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(shell), {});
    constexpr char kGnu[] = "/lib64/ld-linux-x86-64.so.2", kMusl[] = "/lib/ld-musl-x86_64.so.1";
    if (const std::size_t at = bytes.find(kGnu); at != std::string::npos)
      bytes.replace(at, sizeof kMusl, kMusl, sizeof kMusl);
    std::ofstream(program, std::ios::binary) << bytes;
    std::ofstream(script) << "#! " << program << "\n";
  }
  ~MuslPrograms() override {
    for (const std::string& path : {program, script}) std::filesystem::remove(path);
  }
  const std::string program = testing::TempDir() + "clan-musl-" + std::to_string(::getpid());
  const std::string script = program + ".sh";
};

TEST_F(MuslPrograms, StartWithoutTheLibrary) {
  EXPECT_TRUE(must_do_without_us(program.c_str(), with));
  EXPECT_TRUE(must_do_without_us(script.c_str(), with));
  EXPECT_FALSE(must_do_without_us(program.c_str(), without)) << "they would anyway";
  EXPECT_FALSE(must_do_without_us(program.c_str(), nullptr));
}

TEST_F(MuslPrograms, AreNoOthers) {
  for (const char* path : {"/bin/sh", "/nowhere", "/etc/passwd"})
    EXPECT_FALSE(must_do_without_us(path, with)) << path;
}

TEST(ProgramLoader, DoesWithoutTheLibraryWhereItIsTakenOut) {
  char to[100];
  EXPECT_TRUE(is_preload("LD_PRELOAD=x"));
  EXPECT_FALSE(is_preload("LD_PRELOADS=x"));
  EXPECT_TRUE(without_us("LD_PRELOAD=/a.so:/lib/libclan-preload.so /b.so", to));
  EXPECT_STREQ(to, "LD_PRELOAD=/a.so:/b.so");
  EXPECT_FALSE(without_us("LD_PRELOAD=libclan-preload.so", to));
}

}  // namespace
}  // namespace clan::preload
