#include "model.h"

#include <algorithm>
#include <cctype>

namespace clan::rpcgen {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Types of <rpc/rpc.h>, which what rpcgen writes always includes.
const std::set<std::string>& of_rpc() {
  static const std::set<std::string> names = {"netobj", "des_block", "opaque_auth", "netbuf"};
  return names;
}

std::string plain_number(const Number& n) { return n.value ? std::to_string(*n.value) : n.text; }

}  // namespace

// Procedures may have types that are declared later, as with rpcgen: what is made up for them comes
// behind all of the file's.
Model::Model(Interface interface) : definitions_(std::move(interface.definitions)) {
  for (const auto& definition : definitions_) note(definition);
  // Again until nothing more is known: another name of a struct may come before the struct.
  std::map<std::string, bool> before;
  do {
    before = flat_;
    for (const auto& definition : definitions_) learn(definition);
  } while (flat_ != before);
  check_order(definitions_);
  const std::size_t read = definitions_.size();
  for (std::size_t i = 0; i < read; ++i) {
    if (!std::holds_alternative<Program>(definitions_[i])) continue;
    const Program program =
        std::get<Program>(definitions_[i]);  // a copy: what is made up moves the definitions
    add_program(program);
  }
}

// Names of types; and whether a header of the file's own may declare more.
void Model::note(const Definition& definition) {
  if (const auto* e = std::get_if<Enum>(&definition)) declared_.insert(e->name);
  if (const auto* s = std::get_if<Struct>(&definition)) declared_.insert(s->name);
  if (const auto* u = std::get_if<Union>(&definition)) declared_.insert(u->name);
  if (const auto* t = std::get_if<Typedef>(&definition)) declared_.insert(t->declaration.name);
  if (const auto* p = std::get_if<Passed>(&definition)) {
    includes_ = includes_ || p->line.find("include") != std::string::npos;
  }
}

bool Model::is_flat(const TypeName& type) const {
  if (type.kind != TypeName::Kind::kNamed) return true;
  const auto known = flat_.find(type.c);
  return known != flat_.end() && known->second;
}

bool Model::is_flat(const Declaration& d) const {
  switch (d.shape) {
    case Declaration::Shape::kVoid:
    case Declaration::Shape::kFixedOpaque: return true;
    case Declaration::Shape::kPlain:
    case Declaration::Shape::kFixed: return is_flat(d.type);
    default: return false;
  }
}

void Model::check(const Declaration& d) {
  if (d.type.kind != TypeName::Kind::kNamed || declared_.count(d.type.c) > 0) return;
  if (of_rpc().count(d.type.c) > 0) {
    needs_rpc_ = true;
  } else if (!includes_) {
    throw Fault(d.at, "the type \"" + d.type.c +
                          "\" is not declared here: there is no way to know what it holds");
  }
  foreign_.insert(d.type.c);
}

// A type that holds itself, through a pointer, is not flat.
void Model::learn(const Definition& definition) {
  if (const auto* e = std::get_if<Enum>(&definition)) {
    flat_[e->name] = true;
  } else if (const auto* s = std::get_if<Struct>(&definition)) {
    flat_[s->name] = false;
    bool flat = true;
    for (const auto& field : s->fields) {
      check(field);
      flat = flat && is_flat(field);
    }
    flat_[s->name] = flat;
  } else if (const auto* u = std::get_if<Union>(&definition)) {
    flat_[u->name] = false;  // what an arm does not fill is nobody's to see
    check(u->discriminant);
    for (const auto& arm : u->arms) check(arm.field);
  } else if (const auto* t = std::get_if<Typedef>(&definition)) {
    check(t->declaration);
    flat_[t->declaration.name] = is_flat(t->declaration);
  }
}

void Model::make(Definition made) {
  note(made);
  learn(made);
  definitions_.push_back(std::move(made));
}

// What has no name in the file gets one.
Value Model::value_of(const Declaration& d, const std::string& name) {
  if (d.shape == Declaration::Shape::kVoid) return {};
  if (d.shape == Declaration::Shape::kPlain) {
    check(d);
    const bool flat = is_flat(d);
    return {false, d.type.c, flat, flat ? "" : d.type.c};
  }
  Declaration own = d;
  own.name = name;
  make(Typedef{own});
  return {false, name, false, name};
}

void Model::add_program(const Program& program) {
  for (const Version& version : program.versions) {
    const std::string number = plain_number(version.number);
    ProgramVersion made{lower(program.name) + "_" + number, program.name, version.name, {}};
    for (const Procedure& procedure : version.procedures) {
      Stub stub;
      stub.name = lower(procedure.name) + "_" + number;
      stub.number = plain_number(procedure.number);
      stub.result = value_of(procedure.result, stub.name + "_result");
      if (procedure.arguments.size() == 1) {
        stub.argument = value_of(procedure.arguments[0], stub.name + "_argument");
      } else {
        Struct all{stub.name + "_argument", procedure.arguments};
        for (std::size_t i = 0; i < all.fields.size(); ++i) {
          if (all.fields[i].name.empty()) all.fields[i].name = "arg" + std::to_string(i + 1);
        }
        make(all);
        const bool flat = flat_[all.name];
        stub.argument = {false, all.name, flat, flat ? "" : all.name};
      }
      made.stubs.push_back(std::move(stub));
    }
    programs_.push_back(std::move(made));
  }
}

std::uint64_t hash_of(const std::vector<Word>& words) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const Word& word : words) {
    if (word.kind == Word::Kind::kPassed || word.kind == Word::Kind::kEnd) continue;
    for (const char c : word.text + " ")
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace clan::rpcgen
