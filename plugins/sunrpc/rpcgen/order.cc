// The order of types: rpcgen leaves it to the C compiler, whose complaints are about the header.
#include "model.h"

namespace clan::rpcgen {
namespace {

using Shape = Declaration::Shape;

class Order {
 public:
  explicit Order(const std::vector<Definition>& definitions) {
    for (const auto& definition : definitions) {
      if (const auto* e = std::get_if<Enum>(&definition)) later_.insert(e->name);
      if (const auto* t = std::get_if<Typedef>(&definition)) later_.insert(t->declaration.name);
      if (const auto* s = std::get_if<Struct>(&definition)) structs_.insert(s->name);
      if (const auto* u = std::get_if<Union>(&definition)) structs_.insert(u->name);
    }
  }

  void look(const Definition& definition) {
    if (const auto* e = std::get_if<Enum>(&definition)) later_.erase(e->name);
    if (const auto* s = std::get_if<Struct>(&definition)) {
      for (const Declaration& field : s->fields) hold(field, s->name);
      structs_.erase(s->name);
    }
    if (const auto* u = std::get_if<Union>(&definition)) {
      hold(u->discriminant, u->name);
      for (const auto& arm : u->arms) hold(arm.field, u->name);
      structs_.erase(u->name);
    }
    if (const auto* t = std::get_if<Typedef>(&definition)) {
      const Declaration& d = t->declaration;
      // Another name of a struct may come before the struct, an array of them may not.
      d.shape == Shape::kFixed ? hold(d, "") : name(d);
      if (d.shape == Shape::kPlain && d.type.kind == TypeName::Kind::kNamed)
        same_[d.name] = d.type.c;
      later_.erase(d.name);
    }
  }

 private:
  void name(const Declaration& d) const {
    if (d.type.kind == TypeName::Kind::kNamed && later_.count(d.type.c) > 0)
      throw Fault(d.at, "\"" + d.type.c +
                            "\" is used before it is declared: C needs the declaration first");
  }

  void hold(const Declaration& d, const std::string& owner) const {
    name(d);
    if (d.type.kind != TypeName::Kind::kNamed ||
        (d.shape != Shape::kPlain && d.shape != Shape::kFixed))
      return;
    std::string type = d.type.c;
    for (auto at = same_.find(type); at != same_.end(); at = same_.find(type)) type = at->second;
    if (structs_.count(type) == 0) return;
    if (type == owner)
      throw Fault(d.at, "\"" + owner + "\" holds itself: only a pointer to it can be in it");
    throw Fault(
        d.at,
        "\"" + type +
            "\" is used before it is declared: C needs the declaration first, or a pointer here");
  }

  std::set<std::string> later_;    ///< enums and typedefs that C does not know yet
  std::set<std::string> structs_;  ///< of which it knows no more than the name, and unions
  std::map<std::string, std::string> same_;  ///< typedefs, and what they are other names of
};

}  // namespace

void check_order(const std::vector<Definition>& definitions) {
  Order order(definitions);
  for (const auto& definition : definitions) order.look(definition);
}

}  // namespace clan::rpcgen
