#include "share/loader.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

namespace clan::preload {
namespace {

bool names(std::initializer_list<const char*> variables) {
  char* environment[8] = {};
  std::size_t n = 0;
  for (const char* one : variables) environment[n++] = const_cast<char*>(one);
  return names_us(environment);
}

TEST(ProgramLoader, IsToldByTheEnvironment) {
  EXPECT_FALSE(names({"HOME=/"}));
  EXPECT_TRUE(names({"HOME=/", "LD_PRELOAD=/lib/libclan-preload.so"}));
  EXPECT_FALSE(names({"LD_PRELOAD=/lib/other.so"}));
  EXPECT_FALSE(names({"LD_PRELOAD=libclan-preload.so", "CLAN_DISABLE=1"}));
  EXPECT_FALSE(names_us(nullptr));
}

TEST(ProgramLoader, OfAProgramIsTheCLibrarys) {
  EXPECT_EQ(loader_of("/proc/self/exe", 0), clan::preload::Loader::kLoadsUs);
  EXPECT_EQ(loader_of("/nowhere", 0), clan::preload::Loader::kLeavesUs);
  EXPECT_EQ(loader_of("/etc/passwd", 0), clan::preload::Loader::kLeavesUs);
}

TEST(ProgramLoader, LeavesUsOutOfSetuidProgramsAndThoseOf32Bits) {
  const std::string program = testing::TempDir() + "clan-loader-" + std::to_string(::getpid());
  std::filesystem::copy_file("/bin/sh", program, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(loader_of(program.c_str(), 0), clan::preload::Loader::kLoadsUs);
  for (const mode_t bit : {S_ISUID, S_ISGID}) {
    ASSERT_EQ(::chmod(program.c_str(), 0755 | bit), 0);
    EXPECT_EQ(loader_of(program.c_str(), 0), clan::preload::Loader::kLeavesUs) << bit;
  }
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  std::FILE* const file = std::fopen(program.c_str(), "r+");
  ASSERT_NE(file, nullptr);
  std::fseek(file, EI_CLASS, SEEK_SET);
  std::fputc(ELFCLASS32, file);
  std::fclose(file);
  EXPECT_EQ(loader_of(program.c_str(), 0), clan::preload::Loader::kLeavesUs);
  ::unlink(program.c_str());
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
