// What an .x file declares, in the order in which it does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lexer.h"

namespace clan::rpcgen {

/// A type that needs no declaration, or one by its name.
struct TypeName {
  enum class Kind { kVoid, kScalar, kBool, kNamed };
  Kind kind = Kind::kNamed;
  std::string c;  ///< as C has it, as rpcgen writes it
};

/// A number, or the name of one, which may be defined in a header that we do not see.
struct Number {
  std::string text;
  std::optional<std::int64_t> value;
};

struct Declaration {
  enum class Shape { kVoid, kPlain, kFixed, kCounted, kPointer, kString, kFixedOpaque, kOpaque };
  Shape shape = Shape::kPlain;
  TypeName type;
  std::string name;
  std::optional<Number> bound;  ///< none: no limit
  Place at;
};

struct Constant {
  std::string name;
  Number value;
};
struct Enum {
  std::string name;
  std::vector<std::pair<std::string, std::optional<Number>>> values;
};
struct Struct {
  std::string name;
  std::vector<Declaration> fields;
};
struct Union {
  struct Arm {
    std::vector<Number> cases;  ///< empty: default
    Declaration field;
  };
  std::string name;
  Declaration discriminant;
  std::vector<Arm> arms;
};
struct Typedef {
  Declaration declaration;
};
struct Passed {
  std::string line;
};

struct Procedure {
  std::string name;
  Number number;
  Declaration result;
  std::vector<Declaration> arguments;  ///< more than one: rpcgen -N
};
struct Version {
  std::string name;
  Number number;
  std::vector<Procedure> procedures;
};
struct Program {
  std::string name;
  Number number;
  std::vector<Version> versions;
};

using Definition = std::variant<Constant, Enum, Struct, Union, Typedef, Passed, Program>;

struct Interface {
  std::vector<Definition> definitions;
};

/// Throws Fault.
Interface parse(const std::vector<Word>& words);

}  // namespace clan::rpcgen
