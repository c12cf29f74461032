// The parser of .x files: what rpcgen's own files need, and where mistakes are.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "rpcgen/model.h"

namespace clan::rpcgen {
namespace {

std::string fault_of(const std::string& text) {
  try {
    const Model model(parse(words_of("t.x", text, {})));
    return "";
  } catch (const Fault& fault) {
    return fault.what();
  }
}

TEST(Parser, ReadsEveryFileOfRpcsvc) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/include/rpcsvc")) {
    if (entry.path().extension() != ".x") continue;
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_NO_THROW({
      const Interface interface = parse(words_of(entry.path(), text.str(), {"RPC_HDR"}));
      EXPECT_GT(interface.definitions.size(), 2u) << entry.path();
    }) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 10);
}

TEST(Parser, SaysWhereAMistakeIs) {
  EXPECT_EQ(fault_of("struct a {\n  int b;\n  int c\n};\n"), "t.x:4:1: expected \";\", found \"}\"");
  EXPECT_EQ(fault_of("const A = ;"), "t.x:1:11: expected a number or the name of one, found \";\"");
  EXPECT_EQ(fault_of("enum e { A, B }\n"), "t.x:2:1: expected \";\", found the end of the file");
  EXPECT_EQ(fault_of("typedef int a;\ntypedef int a;\n"), "t.x:2:13: \"a\" is defined already");
  EXPECT_EQ(fault_of("/* no end"), "t.x:1:1: this comment has no end");
  EXPECT_EQ(fault_of("struct s { int a$; };"), "t.x:1:17: '$' has no meaning here");
  EXPECT_EQ(fault_of("const A = 0x;"), "t.x:1:11: \"0x\" is no number");
  EXPECT_EQ(fault_of("const A = 99999999999999999999;"), "t.x:1:11: \"99999999999999999999\" is no number");
  EXPECT_EQ(fault_of("#ifdef A\nconst B = 1;\n"), "t.x:1:1: this #if has no #endif");
  EXPECT_EQ(fault_of("#endif\n"), "t.x:1:1: #endif without an #if");
  EXPECT_EQ(fault_of("struct s { void a; };"), "t.x:1:12: a field of a struct cannot be void");
  EXPECT_EQ(fault_of("struct s { quadruple q; };"), "t.x:1:12: quadruple: C has no such type on this machine");
  EXPECT_EQ(fault_of("program P { version V { void A(void) = 1; void B(void) = 1; } = 1; } = 9;"),
            "t.x:1:58: another procedure of this version has the number 1");
  EXPECT_EQ(fault_of("struct s { nowhere n; };").substr(0, 40), "t.x:1:20: the type \"nowhere\" is not decl");
}

TEST(Parser, KnowsWhichTypesAreFlat) {
  const Model model(parse(words_of("t.x",
                                   "struct flat { int a; opaque b[5]; hyper c[2]; };\n"
                                   "struct deep { flat f; string s<>; };\n"
                                   "typedef flat many[3];\ntypedef opaque bytes<8>;\n"
                                   "program P { version V { flat A(many) = 1; deep B(string) = 2; void C(int, bytes) = 3; } = 2; } = 5;",
                                   {})));
  const auto& stubs = model.programs().at(0).stubs;
  EXPECT_EQ(stubs[0].name, "a_2");
  EXPECT_TRUE(stubs[0].argument.flat && stubs[0].result.flat);
  EXPECT_FALSE(stubs[1].argument.flat || stubs[1].result.flat);
  EXPECT_EQ(stubs[2].argument.c, "c_2_argument");
  EXPECT_TRUE(stubs[2].result.is_void);
}

TEST(Parser, NumbersHaveTheNamesThatRpcgenGivesThem) {
  const Model model(parse(words_of("t.x",
                                   "const ONE = 1;\nprogram P {\n"
                                   "  version V1 { void NOTHING(void) = 0; int ADD(int) = ONE; } = 1;\n"
                                   "  version V2 { void NOTHING(void) = 0; void MORE(int) = 2; } = 2;\n} = 0x20000001;",
                                   {})));
  EXPECT_NE(header_of(model, "T_H").find("#define P 0x20000001\n#define V1 1\n#define NOTHING 0\n#define ADD ONE\n"
                                         "#define V2 2\n#define MORE 2\n"),
            std::string::npos);
}

TEST(Parser, ObeysPreprocessorLines) {
  const auto names = [](const std::string& text, std::set<std::string> defined) {
    std::string all;
    for (const Word& word : words_of("t.x", text, std::move(defined))) {
      if (word.kind != Word::Kind::kEnd) all += word.text + " ";
    }
    return all;
  };
  EXPECT_EQ(names("#ifdef A\na\n#else\nb\n#endif\n%passed\nc", {}), "b passed c ");
  EXPECT_EQ(names("#ifdef A\na\n#else\nb\n#endif\nc", {"A"}), "a c ");
  EXPECT_EQ(names("#define N 7\n#if !defined(M)\nN\n#endif\n#undef N\nN", {}), "7 N ");
  EXPECT_EQ(names("#if 0\n$$$\n#ifdef X\n#endif\n#endif\nx", {}), "x ");
}

TEST(Hash, ChangesWithTheWordsAndNotWithComments) {
  const auto hash = [](const std::string& text) { return hash_of(words_of("t.x", text, {})); };
  EXPECT_EQ(hash("struct a { int b; };"), hash("/* a */ struct a {\n  int b; // b\n};"));
  EXPECT_NE(hash("struct a { int b; };"), hash("struct a { unsigned int b; };"));
}

}  // namespace
}  // namespace clan::rpcgen
