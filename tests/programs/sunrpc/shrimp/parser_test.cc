// The parser of .x files: what rpcgen's own files need, and where mistakes are.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rpcgen/model.h"
#include "rpcgen/preprocess.h"

namespace clan::rpcgen {
namespace {

/// preprocess() where cpp does not get what this program has been started with: a sanitized library
/// has no runtime there.
bool preprocess_alone(const std::string& file, const std::vector<std::string>& options,
                      std::string* text) {
  const char* preload = getenv("LD_PRELOAD");
  const std::string before = preload == nullptr ? "" : preload;
  unsetenv("LD_PRELOAD");
  const bool well = preprocess(file, options, text);
  if (preload != nullptr) setenv("LD_PRELOAD", before.c_str(), 1);
  return well;
}

std::string fault_of(const std::string& text) {
  try {
    const Model model(parse(words_of("t.x", text)));
    return "";
  } catch (const Fault& fault) {
    return fault.what();
  }
}

TEST(Parser, ReadsEveryFileOfRpcsvc) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/include/rpcsvc")) {
    if (entry.path().extension() != ".x") continue;
    std::string text;
    ASSERT_TRUE(preprocess_alone(entry.path(), {}, &text));
    EXPECT_NO_THROW({
      const Interface interface = parse(words_of(entry.path(), text));
      EXPECT_GT(interface.definitions.size(), 2u) << entry.path();
    }) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 10);
}

TEST(Parser, SaysWhereAMistakeIs) {
  EXPECT_EQ(fault_of("struct a {\n  int b;\n  int c\n};\n"),
            "t.x:4:1: expected \";\", found \"}\"");
  EXPECT_EQ(fault_of("const A = ;"), "t.x:1:11: expected a number or the name of one, found \";\"");
  EXPECT_EQ(fault_of("enum e { A, B }\n"), "t.x:2:1: expected \";\", found the end of the file");
  EXPECT_EQ(fault_of("typedef int a;\ntypedef int a;\n"), "t.x:2:13: \"a\" is defined already");
  EXPECT_EQ(fault_of("/* no end"), "t.x:1:1: this comment has no end");
  EXPECT_EQ(fault_of("struct s { int a$; };"), "t.x:1:17: '$' has no meaning here");
  EXPECT_EQ(fault_of("const A = 0x;"), "t.x:1:11: \"0x\" is no number");
  EXPECT_EQ(fault_of("const A = 99999999999999999999;"),
            "t.x:1:11: \"99999999999999999999\" is no number");
  EXPECT_EQ(fault_of("# 7 \"b.x\" 1\nconst A = ;\n"),
            "b.x:7:11: expected a number or the name of one, found \";\"");
  EXPECT_EQ(fault_of("# -7 \"b.x\"\n"), "t.x:1:1: a line mark that makes no sense");
  EXPECT_EQ(fault_of("struct s { void a; };"), "t.x:1:12: a field of a struct cannot be void");
  EXPECT_EQ(fault_of("struct s { quadruple q; };"),
            "t.x:1:12: quadruple: C has no such type on this machine");
  EXPECT_EQ(fault_of("program P { version V { void A(void) = 1; void B(void) = 1; } = 1; } = 9;"),
            "t.x:1:58: another procedure of this version has the number 1");
  EXPECT_EQ(fault_of("struct s { nowhere n; };").substr(0, 40),
            "t.x:1:20: the type \"nowhere\" is not decl");
}

TEST(Parser, RefusesTheSameNumberTwice) {
  EXPECT_EQ(
      fault_of("const ONE = 1;\nprogram P { version V { void A(void) = ONE; void B(int) = 0x1; "
               "} = 1; } = 9;"),
      "t.x:2:59: another procedure of this version has the number 0x1");
  EXPECT_EQ(fault_of("program P {\n  version V { void A(void) = 1; } = 1;\n"
                     "  version W { void B(void) = 1; } = 01;\n} = 9;"),
            "t.x:3:37: another version of this program has the number 01");
  EXPECT_EQ(fault_of("const TWO = 2;\nunion u switch (int k) {\ncase 1: case TWO: int a;\n"
                     "case 2: void; };"),
            "t.x:4:6: another case of this union has the value 2");
  EXPECT_EQ(fault_of("union u switch (bool k) { case TRUE: int a; case 1: void; };"),
            "t.x:1:50: another case of this union has the value 1");
  EXPECT_EQ(
      fault_of("enum e { A, B = 0 };\nunion u switch (e k) { case A: int a; case B: void; };"),
      "t.x:2:44: another case of this union has the value B");
  EXPECT_EQ(
      fault_of("program P { version V { void A(void) = 1; } = 1; version W { void A(void) = 1; }"
               " = 2; } = 9;\nprogram Q { version X { void A(void) = 1; } = 1; } = 8;"),
      "");
}

TEST(Parser, RefusesTypesThatCDoesNotKnowYet) {
  const std::string late = "\nstruct late { int a; };";
  const std::string why = " is used before it is declared: C needs the declaration first";
  const std::string whole = why + ", or a pointer here";
  EXPECT_EQ(fault_of("struct s {\n  late l;\n};" + late), "t.x:2:8: \"late\"" + whole);
  EXPECT_EQ(fault_of("typedef late l[3];" + late), "t.x:1:14: \"late\"" + whole);
  EXPECT_EQ(fault_of("typedef late l;\nunion u switch (int k) { case 1: l a; };" + late),
            "t.x:2:36: \"late\"" + whole);
  EXPECT_EQ(fault_of("struct s {\n  struct s next;\n};"),
            "t.x:2:12: \"s\" holds itself: only a pointer to it can be in it");
  EXPECT_EQ(fault_of("struct s { word *w; };\ntypedef int word;"), "t.x:1:18: \"word\"" + why);
  EXPECT_EQ(fault_of("union u switch (e k) { default: void; };\nenum e { A };"),
            "t.x:1:19: \"e\"" + why);
  EXPECT_EQ(fault_of("struct s { late *a; late b<>; s *next; };\ntypedef late other;" + late), "");
  EXPECT_EQ(
      fault_of("program P { version V { late A(word) = 1; } = 1; } = 9;\ntypedef int word;" + late),
      "");
}

TEST(Parser, KnowsWhichTypesAreFlat) {
  const Model model(parse(words_of("t.x",
                                   "struct flat { int a; opaque b[5]; hyper c[2]; };\n"
                                   "struct deep { flat f; string s<>; };\n"
                                   "typedef flat many[3];\ntypedef opaque bytes<8>;\n"
                                   "program P { version V { flat A(many) = 1; deep B(string) = 2; "
                                   "void C(int, bytes) = 3; } = 2; } = 5;")));
  const auto& stubs = model.programs().at(0).stubs;
  EXPECT_EQ(stubs[0].name, "a_2");
  EXPECT_TRUE(stubs[0].argument.flat && stubs[0].result.flat);
  EXPECT_FALSE(stubs[1].argument.flat || stubs[1].result.flat);
  EXPECT_EQ(stubs[2].argument.c, "c_2_argument");
  EXPECT_TRUE(stubs[2].result.is_void);
}

// As in mount.x and sm_inter.x: what rpcgen leaves to the C compiler has to be in its order there.
TEST(Parser, ProceduresAndPointersMayBeOfTypesDeclaredLater) {
  const Model model(parse(words_of(
      "t.x",
      "typedef struct node *list;\nprogram P { version V { late A(list) = 1; } = 1; } = 5;\n"
      "struct node { late *l; list next; };\nstruct late { int a; };")));
  const std::string header = header_of(model, "T_H");
  EXPECT_LT(header.find("typedef struct node node;"), header.find("typedef node *list;"));
  EXPECT_TRUE(model.programs().at(0).stubs[0].result.flat);
  EXPECT_EQ(model.programs().at(0).stubs[0].result.c, "late");
}

// rpcgen and C take them: the codec of such a name is its struct's.
TEST(Parser, KnowsOtherNamesOfStructsThatAreDeclaredLater) {
  const Model model(parse(words_of("t.x",
                                   "typedef struct b c;\ntypedef struct b a;\n"
                                   "struct b { int x; };\nstruct w { a y; };\n"
                                   "program P { version V { w F(c) = 1; } = 1; } = 9;\n")));
  const auto& stub = model.programs().at(0).stubs.at(0);
  EXPECT_TRUE(stub.argument.flat && stub.result.flat);
}

TEST(Parser, TypesOfAHeaderHaveRoutinesOfTheProgram) {
  const Model model(parse(words_of("t.x", "struct s { netobj n; };")));  // of <rpc/rpc.h>
  EXPECT_EQ(model.foreign(), std::set<std::string>{"netobj"});
  const std::string header = header_of(model, "T_H");
  EXPECT_NE(header.find("#include <rpc/rpc.h>\n"), std::string::npos);
  EXPECT_NE(header.find("clan_put_netobj("), std::string::npos);
  EXPECT_EQ(fault_of("%#include \"mine.h\"\nstruct s { mine m; };"), "");
  EXPECT_NE(codec_of(model, "t.h").find("TRY(clan_get_netobj(from, &v->n))"), std::string::npos);
}

TEST(Parser, ReadsWhatRpcgenReadsOfProcedures) {
  EXPECT_EQ(
      fault_of(
          "typedef unsigned hyper int a; typedef unsigned short int b;\n"
          "union u switch (char c) { case 'a': int i; default: void; };\n"
          "program P { version V { int A() = 1; void B(string name<8>, int n) = 2; } = 1; } = 9;"),
      "");
  EXPECT_EQ(fault_of("const A = 'b;\n"), "t.x:1:11: this string has no end on its line");
}

TEST(Parser, NumbersHaveTheNamesThatRpcgenGivesThem) {
  const Model model(parse(words_of(
      "t.x",
      "const ONE = 1;\nprogram P {\n"
      "  version V1 { void NOTHING(void) = 0; int ADD(int) = ONE; } = 1;\n"
      "  version V2 { void NOTHING(void) = 0; void MORE(int) = 2; } = 2;\n} = 0x20000001;")));
  EXPECT_NE(header_of(model, "T_H")
                .find("#define P 0x20000001\n#define V1 1\n#define NOTHING 0\n#define ADD ONE\n"
                      "#define V2 2\n#define MORE 2\n"),
            std::string::npos);
}

/// Files in a directory of their own.
class Files : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(directory_ + "/" + name).parent_path());
    std::ofstream(directory_ + "/" + name) << text;
    return directory_ + "/" + name;
  }
  static std::string words_in(const std::string& file,
                              const std::vector<std::string>& options = {}) {
    std::string text, all;
    EXPECT_TRUE(preprocess_alone(file, options, &text));
    for (const Word& word : words_of(file, text)) {
      if (word.kind != Word::Kind::kEnd) all += word.text + " ";
    }
    return all;
  }
  std::string words(const std::string& text, const std::vector<std::string>& options = {}) {
    return words_in(write("t.x", text), options);
  }
  const std::string directory_ = testing::TempDir() + "clan-parser-" + std::to_string(getpid());
};

TEST_F(Files, AreReadAsThePreprocessorReadsThem) {
  EXPECT_EQ(words("#ifdef A\na\n#else\nb\n#endif\n%passed\nc"), "b passed c ");
  EXPECT_EQ(words("#ifdef A\na\n#else\nb\n#endif\nc", {"-DA"}), "a c ");
  EXPECT_EQ(words("#define N 7\n#if !defined(M)\nN\n#endif\n#undef N\nN"), "7 N ");
  EXPECT_EQ(words("#if 0\n$$$\n#ifdef X\n#endif\n#endif\nx"), "x ");
  EXPECT_EQ(words("#ifdef RPC_HDR\na\n#endif"), "a ");
  const std::string text =
      "#if defined(A) && \\\n  !defined(B) || VALUE >= 3\na\n#elif VALUE == 1\nb\n#endif";
  EXPECT_EQ(words(text), "");
  EXPECT_EQ(words(text, {"-DA"}), "a ");
  EXPECT_EQ(words(text, {"-DA", "-DB"}), "");
  EXPECT_EQ(words(text, {"-DVALUE=3"}), "a ");
  EXPECT_EQ(words(text, {"-DVALUE=1"}), "b ");
  EXPECT_EQ(words("#define OF(t) t<8>\nOF(x)"), "x < 8 > ");
  EXPECT_EQ(words("%#include \"a.h\"\n%/* isn't\n%   a word */\na"),
            "#include \"a.h\" /* isn't    a word */ a ");
  EXPECT_EQ(words("%#define A 1 + \\\n   2 + \\\n 3\na"), "#define A 1 + \\\n   2 + \\\n 3 a ");
}

TEST_F(Files, IncludeOthersFromDirectories) {
  write("inside/shared.x", "const A = 1;\n");
  const std::string file = write("t.x", "#include \"shared.x\"\nconst B = 2;\n");
  EXPECT_EQ(words_in(file, {"-I" + directory_ + "/inside"}), "const A = 1 ; const B = 2 ; ");
  std::string text;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(preprocess_alone(file, {}, &text));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("t.x:1:10: "), std::string::npos);
}

TEST_F(Files, HaveTheirOwnPlacesInMistakes) {
  const auto mistake = [&](const std::string& file, const std::vector<std::string>& options) {
    std::string text;
    EXPECT_TRUE(preprocess_alone(file, options, &text));
    try {
      const Model model(parse(words_of(file, text)));
      return std::string();
    } catch (const Fault& fault) {
      return std::string(fault.what()).substr(directory_.size() + 1);
    }
  };
  write("shared.x", "\n\n\tconst   A   =   ;\n");
  EXPECT_EQ(mistake(write("t.x", "#include \"shared.x\"\n"), {}).substr(0, 15), "shared.x:3:18: ");
  EXPECT_EQ(
      mistake(write("t.x", "#if X\n#else\n\n\n\n\n\n\n\n\n\n#endif\nstruct  s  { int  a   b; };\n"),
              {})
          .substr(0, 11),
      "t.x:13:23: ");
  EXPECT_EQ(mistake(write("t.x", "#define LONG_NAME 7\nconst A = LONG_NAME;  const = 1;\n"), {})
                .substr(0, 6),
            "t.x:2:");
}

TEST(Hash, ChangesWithTheWordsAndNotWithComments) {
  const auto hash = [](const std::string& text) { return hash_of(words_of("t.x", text)); };
  EXPECT_EQ(hash("struct a { int b; };"), hash("/* a */ struct a {\n  int b; // b\n};"));
  EXPECT_NE(hash("struct a { int b; };"), hash("struct a { unsigned int b; };"));
}

}  // namespace
}  // namespace clan::rpcgen
