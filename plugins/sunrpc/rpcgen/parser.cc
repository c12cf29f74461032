// The grammar of RFC 4506 section 6.3 and RFC 5531 section 12, with what rpcgen reads besides: more
// names of integers, types named with struct or enum before them, procedures of several arguments.
#include <cerrno>
#include <cstdlib>
#include <set>
#include <utility>

#include "interface.h"

namespace clan::rpcgen {
namespace {

using Kind = Word::Kind;
using Shape = Declaration::Shape;

const std::map<std::string, std::string> kScalars = {
    {"int", "int"},      {"long", "long"},   {"short", "short"}, {"char", "char"},
    {"hyper", "quad_t"}, {"quad", "quad_t"}, {"float", "float"}, {"double", "double"},
};
const std::map<std::string, std::string> kUnsigned = {
    {"int", "u_int"},   {"long", "u_long"},    {"short", "u_short"},
    {"char", "u_char"}, {"hyper", "u_quad_t"}, {"quad", "u_quad_t"},
};
/// Names that C has already.
const std::set<std::string> kKnownScalars = {
    "u_int",     "u_long",    "u_short",   "u_char",    "quad_t",    "u_quad_t",   "int8_t",
    "int16_t",   "int32_t",   "int64_t",   "uint8_t",   "uint16_t",  "uint32_t",   "uint64_t",
    "u_int32_t", "u_int64_t", "rpcprog_t", "rpcvers_t", "rpcproc_t", "longlong_t", "u_longlong_t"};

class Parser {
 public:
  explicit Parser(const std::vector<Word>& words) : words_(words) {}

  Interface run() {
    for (;;) {
      take_passed();
      if (word().kind == Kind::kEnd) return std::move(interface_);
      definition();
    }
  }

 private:
  const Word& word() const { return words_[i_]; }
  [[noreturn]] void fail(const std::string& wanted) const {
    throw Fault(word().at,
                "expected " + wanted + ", found " +
                    (word().kind == Kind::kEnd ? word().text : "\"" + word().text + "\""));
  }
  const Word& take() {
    const Word& taken = words_[i_];
    if (taken.kind != Kind::kEnd) ++i_;
    // Lines for the compiler stand where the next definition will; within one they go before it.
    while (words_[i_].kind == Kind::kPassed) pending_.push_back(Passed{words_[i_++].text});
    return taken;
  }
  void take_passed() {
    while (words_[i_].kind == Kind::kPassed) pending_.push_back(Passed{words_[i_++].text});
    for (auto& line : pending_) interface_.definitions.emplace_back(std::move(line));
    pending_.clear();
  }
  bool is(const char* text) const { return word().text == text && word().kind != Kind::kEnd; }
  bool accept(const char* text) {
    if (!is(text)) return false;
    take();
    return true;
  }
  void expect(const char* text) {
    if (!accept(text)) fail(std::string("\"") + text + "\"");
  }
  std::string name(const char* what) {
    if (word().kind != Kind::kName) fail(what);
    return take().text;
  }

  Number number() {
    Number n{word().text, std::nullopt};
    if (word().kind == Kind::kNumber) {
      const Word& at = word();
      if (at.text[0] == '\'') {
        if (at.text.size() == 3) n.value = at.text[1];
      } else if (at.text[0] != '"') {
        char* end = nullptr;
        errno = 0;
        const bool negative = at.text[0] == '-';
        const unsigned long long value =
            std::strtoull(at.text.c_str() + (negative ? 1 : 0), &end, 0);
        if (*end != 0 || errno != 0) throw Fault(at.at, "\"" + at.text + "\" is no number");
        n.value = negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
      }
    } else if (word().kind == Kind::kName) {
      const auto known = constants_.find(word().text);
      if (known != constants_.end()) n.value = known->second;
    } else {
      fail("a number or the name of one");
    }
    take();
    return n;
  }

  // Throws if the number is among these already.
  static void once(std::set<std::string>* numbers, const Number& n, const Place& at,
                   const std::string& other_has) {
    const std::string as_bool = n.text == "TRUE" ? "1" : n.text == "FALSE" ? "0" : n.text;
    if (!numbers->insert(n.value ? std::to_string(*n.value) : as_bool).second)
      throw Fault(at, "another " + other_has + " " + n.text);
  }

  void define(const std::string& new_name, const Place& at) {
    if (!names_.insert(new_name).second) throw Fault(at, "\"" + new_name + "\" is defined already");
  }

  void definition() {
    const Place at = word().at;
    if (accept("const")) {
      Constant constant;
      constant.name = name("a name for the constant");
      define(constant.name, at);
      expect("=");
      constant.value = number();
      if (constant.value.value) constants_[constant.name] = *constant.value.value;
      expect(";");
      add(std::move(constant));
    } else if (accept("typedef")) {
      Declaration d = declaration();
      if (d.shape == Shape::kVoid) throw Fault(at, "a typedef of void");
      // "typedef struct x x": x is called that already
      const bool nothing_new =
          d.shape == Shape::kPlain && d.type.c == d.name && names_.count(d.name) > 0;
      if (!nothing_new) define(d.name, d.at);
      expect(";");
      if (!nothing_new) add(Typedef{std::move(d)});
    } else if (is("enum") || is("struct") || is("union")) {
      const std::string what = take().text;
      const Place name_at = word().at;
      const std::string own = name("a name for the type");
      define(own, name_at);
      body(what, own);
      expect(";");
    } else if (accept("program")) {
      program();
    } else {
      fail("const, typedef, enum, struct, union or program");
    }
  }

  template <typename T>
  void add(T made) {
    for (auto& line : pending_) interface_.definitions.emplace_back(std::move(line));
    pending_.clear();
    interface_.definitions.emplace_back(std::move(made));
  }

  void body(const std::string& what, const std::string& own) {
    if (what == "enum") return enum_body(own);
    if (what == "struct") return struct_body(own);
    union_body(own);
  }

  void enum_body(const std::string& own) {
    Enum made{own, {}};
    std::int64_t value = 0;
    bool known = true;
    expect("{");
    do {
      const Place at = word().at;
      const std::string entry = name("a name for the value");
      define(entry, at);
      std::optional<Number> n;
      if (accept("=")) {
        n = number();
        known = n->value.has_value();
        value = n->value.value_or(0);
      }
      if (known) constants_[entry] = value++;
      made.values.emplace_back(entry, n);
    } while (accept(","));
    expect("}");
    add(std::move(made));
  }

  void struct_body(const std::string& own) {
    Struct made{own, {}};
    const std::string outer = std::exchange(owner_, own);
    expect("{");
    while (!is("}")) {
      Declaration d = declaration();
      if (d.shape == Shape::kVoid) throw Fault(d.at, "a field of a struct cannot be void");
      made.fields.push_back(std::move(d));
      expect(";");
    }
    expect("}");
    owner_ = outer;
    add(std::move(made));
  }

  void union_body(const std::string& own) {
    Union made{own, {}, {}};
    const std::string outer = std::exchange(owner_, own);
    expect("switch");
    expect("(");
    std::set<std::string> cases;
    made.discriminant = declaration();
    if (made.discriminant.shape != Shape::kPlain)
      throw Fault(made.discriminant.at, "a union is chosen by an integer or an enum");
    expect(")");
    expect("{");
    bool has_default = false;
    while (!is("}")) {
      Union::Arm arm;
      const Place at = word().at;
      if (accept("default")) {
        if (std::exchange(has_default, true)) throw Fault(at, "a second default");
        expect(":");
      } else {
        if (!is("case")) fail("case, default or \"}\"");
        while (accept("case")) {
          const Place case_at = word().at;
          arm.cases.push_back(is("TRUE") || is("FALSE") ? Number{take().text, std::nullopt}
                                                        : number());
          once(&cases, arm.cases.back(), case_at, "case of this union has the value");
          expect(":");
        }
      }
      arm.field = declaration();
      expect(";");
      made.arms.push_back(std::move(arm));
    }
    if (made.arms.empty()) fail("case or default");
    expect("}");
    owner_ = outer;
    add(std::move(made));
  }

  TypeName type() {
    if (accept("void")) return {TypeName::Kind::kVoid, "void"};
    if (accept("bool") || accept("bool_t")) return {TypeName::Kind::kBool, "bool_t"};
    if (accept("unsigned")) {
      const auto found = word().kind == Kind::kName ? kUnsigned.find(word().text) : kUnsigned.end();
      if (found == kUnsigned.end()) return {TypeName::Kind::kScalar, "u_int"};
      take();
      (void)(found->first != "int" && found->first != "char" && accept("int"));
      return {TypeName::Kind::kScalar, found->second};
    }
    if (is("quadruple")) throw Fault(word().at, "quadruple: C has no such type on this machine");
    if (is("enum") || is("struct") || is("union")) {
      const std::string what = take().text;
      if (is("{") || is("switch")) {  // without a name of its own
        const std::string own = owner_ + "_" + std::to_string(++unnamed_);
        names_.insert(own);
        body(what, own);
        return {TypeName::Kind::kNamed, own};
      }
      return {TypeName::Kind::kNamed, name("the name of a type")};
    }
    if (word().kind != Kind::kName) fail("a type");
    const std::string own = take().text;
    if (const auto found = kScalars.find(own); found != kScalars.end()) {
      (void)((own == "long" || own == "short" || own == "hyper") && accept("int"));
      return {TypeName::Kind::kScalar, found->second};
    }
    if (kKnownScalars.count(own) > 0 && names_.count(own) == 0)
      return {TypeName::Kind::kScalar, own};
    return {TypeName::Kind::kNamed, own};
  }

  Declaration declaration() {
    Declaration d;
    d.at = word().at;
    if (is("opaque") || is("string")) {
      const bool opaque = take().text == "opaque";
      d.type = {TypeName::Kind::kScalar, "char"};
      d.at = word().at;
      d.name = name("a name");
      if (opaque && accept("[")) {
        d.shape = Shape::kFixedOpaque;
        d.bound = number();
        expect("]");
        return d;
      }
      d.shape = opaque ? Shape::kOpaque : Shape::kString;
      counted(d);
      return d;
    }
    d.type = type();
    if (d.type.kind == TypeName::Kind::kVoid && !is("*")) {
      d.shape = Shape::kVoid;
      if (word().kind == Kind::kName) d.name = take().text;
      return d;
    }
    if (accept("*")) d.shape = Shape::kPointer;
    d.at = word().at;
    d.name = name("a name");
    if (d.shape == Shape::kPointer) return d;
    if (accept("[")) {
      d.shape = Shape::kFixed;
      d.bound = number();
      expect("]");
    } else if (is("<")) {
      d.shape = Shape::kCounted;
      counted(d);
    }
    return d;
  }

  void counted(Declaration& d) {
    expect("<");
    if (!is(">")) d.bound = number();
    expect(">");
  }

  // What a procedure takes or returns: a type without a name; rpcgen also reads "string" there.
  Declaration unnamed() {
    Declaration d;
    d.at = word().at;
    if (accept("string")) {
      d.shape = Shape::kString;
      d.type = {TypeName::Kind::kScalar, "char"};
      if (word().kind == Kind::kName) d.name = take().text;
      if (is("<")) counted(d);
    } else {
      d.type = type();
      if (d.type.kind == TypeName::Kind::kVoid) d.shape = Shape::kVoid;
      if (accept("*")) d.shape = Shape::kPointer;
    }
    if (word().kind == Kind::kName) d.name = take().text;
    return d;
  }

  void program() {
    Program made;
    const Place at = word().at;
    made.name = name("a name for the program");
    define(made.name, at);
    expect("{");
    std::set<std::string> numbers;
    do made.versions.push_back(version(&numbers));
    while (is("version"));
    expect("}");
    expect("=");
    made.number = number();
    expect(";");
    add(std::move(made));
  }

  Version version(std::set<std::string>* versions) {
    Version made;
    if (!accept("version")) fail("version");
    const Place at = word().at;
    made.name = name("a name for the version");
    define(made.name, at);
    expect("{");
    std::set<std::string> numbers;
    do {
      Procedure p;
      p.result = unnamed();
      const Place name_at = word().at;
      p.name = p.result.name.empty() ? name("a name for the procedure")
                                     : std::exchange(p.result.name, "");
      if (is("(") && p.name.empty()) throw Fault(name_at, "a procedure without a name");
      expect("(");
      if (is(")")) {
        p.arguments.emplace_back().shape = Shape::kVoid;
      } else {
        do p.arguments.push_back(unnamed());
        while (accept(","));
      }
      expect(")");
      expect("=");
      const Place number_at = word().at;
      p.number = number();
      once(&numbers, p.number, number_at, "procedure of this version has the number");
      expect(";");
      made.procedures.push_back(std::move(p));
    } while (!is("}"));
    expect("}");
    expect("=");
    const Place number_at = word().at;
    made.number = number();
    once(versions, made.number, number_at, "version of this program has the number");
    expect(";");
    return made;
  }

  const std::vector<Word>& words_;
  std::size_t i_ = 0;
  Interface interface_;
  std::vector<Passed> pending_;
  std::set<std::string> names_;
  std::map<std::string, std::int64_t> constants_;
  std::string owner_ = "unnamed";
  int unnamed_ = 0;
};

}  // namespace

Interface parse(const std::vector<Word>& words) { return Parser(words).run(); }

}  // namespace clan::rpcgen
