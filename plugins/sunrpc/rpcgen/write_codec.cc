// How values that are not flat go into a slot and come out of it: in the machine's order, lengths
// before elements.
#include "model.h"

namespace clan::rpcgen {
namespace {

using Shape = Declaration::Shape;

std::string most(const Declaration& d) {
  return d.bound ? "(uint32_t)(" + d.bound->text + ")" : "0xffffffffu";
}

class Codec {
 public:
  explicit Codec(const Model& model) : model_(model) {}

  std::string text(const std::string& header) {
    out_ = "/* Made by clan-rpcgen: changes belong into the .x file. */\n#include \"" + header +
           "\"\n\n" +
           "#define TRY(step)                              \\\n  do {                              "
           "          "
           " \\\n" +
           "    enum clan_shrimp_stat stat_ = (step);      \\\n" +
           "    if (stat_ != CLAN_SHRIMP_OK) return stat_; \\\n  } while (0)\n";
    for (const Definition& definition : model_.definitions()) {
      if (const auto* s = std::get_if<Struct>(&definition)) {
        if (!model_.is_flat(TypeName{TypeName::Kind::kNamed, s->name})) write(*s);
      } else if (const auto* u = std::get_if<Union>(&definition)) {
        write(*u);
      } else if (const auto* t = std::get_if<Typedef>(&definition)) {
        if (!model_.is_flat(t->declaration)) write(*t);
      }
    }
    return out_;
  }

 private:
  enum class What { kPut, kGet, kFree };
  static constexpr What kAll[] = {What::kPut, What::kGet, What::kFree};

  void begin(What what, const std::string& name) {
    if (what == What::kPut) {
      out_ += "\nenum clan_shrimp_stat clan_put_" + name +
              "(clan_shrimp_bytes *to, const void *from) {\n  const " + name + " *v = (const " +
              name + " *)from;\n";
    } else if (what == What::kGet) {
      out_ += "\nenum clan_shrimp_stat clan_get_" + name +
              "(clan_shrimp_bytes *from, void *to) {\n  " + name + " *v = (" + name +
              " *)to;\n  memset(v, 0, sizeof *v);\n";
    } else {
      out_ += "\nvoid clan_free_" + name + "(void *value) {\n  " + name + " *v = (" + name +
              " *)value;\n";
    }
  }
  void end(What what) { out_ += what == What::kFree ? "}\n" : "  return CLAN_SHRIMP_OK;\n}\n"; }

  void write(const Struct& s) {
    for (const What what : kAll) {
      begin(what, s.name);
      for (const Declaration& field : s.fields) item(what, field, "v->" + field.name, "  ");
      end(what);
    }
  }

  void write(const Typedef& t) {
    for (const What what : kAll) {
      begin(what, t.declaration.name);
      item(what, t.declaration, "(*v)", "  ");
      end(what);
    }
  }

  void write(const Union& u) {
    for (const What what : kAll) {
      begin(what, u.name);
      item(what, u.discriminant, "v->" + u.discriminant.name, "  ");
      out_ += "  switch ((long long)v->" + u.discriminant.name + ") {\n";
      bool has_default = false;
      for (const auto& arm : u.arms) {
        for (const Number& n : arm.cases) out_ += "    case " + n.text + ":\n";
        if (arm.cases.empty()) out_ += "    default:\n";
        has_default = has_default || arm.cases.empty();
        if (arm.field.shape != Shape::kVoid) {
          item(what, arm.field, "v->" + u.name + "_u." + arm.field.name, "      ");
        }
        out_ += "      break;\n";
      }
      if (!has_default)
        out_ += std::string("    default:\n      ") +
                (what == What::kFree ? "break" : "return CLAN_SHRIMP_GARBAGE") + ";\n";
      out_ += "  }\n";
      end(what);
    }
  }

  // One value of a type, at the lvalue `at`.
  void value(What what, const TypeName& type, const std::string& at, const std::string& in) {
    const bool flat = model_.is_flat(type);
    if (what == What::kFree) {
      if (!flat) out_ += in + "clan_free_" + type.c + "(&" + at + ");\n";
    } else if (flat) {
      out_ += in +
              (what == What::kPut ? "TRY(clan_put_bytes(to, &" : "TRY(clan_get_bytes(from, &") +
              at + ", sizeof " + at + "));\n";
    } else {
      out_ += in + (what == What::kPut ? "TRY(clan_put_" : "TRY(clan_get_") + type.c +
              (what == What::kPut ? "(to, &" : "(from, &") + at + "));\n";
    }
  }

  void item(What what, const Declaration& d, const std::string& at, const std::string& in) {
    const bool put = what == What::kPut, get = what == What::kGet;
    switch (d.shape) {
      case Shape::kVoid: return;
      case Shape::kPlain: return value(what, d.type, at, in);
      case Shape::kFixedOpaque:
      case Shape::kFixed:
        if (d.shape == Shape::kFixedOpaque || model_.is_flat(d.type)) {
          if (put) out_ += in + "TRY(clan_put_bytes(to, " + at + ", sizeof " + at + "));\n";
          if (get) out_ += in + "TRY(clan_get_bytes(from, " + at + ", sizeof " + at + "));\n";
          return;
        }
        return each(what, d.type, d.bound->text, at, in);
      case Shape::kString:
        if (put) out_ += in + "TRY(clan_put_string(to, " + at + ", " + most(d) + "));\n";
        if (get) out_ += in + "TRY(clan_get_string(from, &" + at + ", " + most(d) + "));\n";
        if (what == What::kFree) out_ += in + "free(" + at + ");\n" + in + at + " = NULL;\n";
        return;
      case Shape::kPointer: return pointer(what, d, at, in);
      case Shape::kOpaque:
      case Shape::kCounted: return counted(what, d, at, in);
    }
  }

  void each(What what, const TypeName& type, const std::string& length, const std::string& array,
            const std::string& in) {
    out_ += in + "for (uint32_t i = 0; i < (uint32_t)(" + length + "); ++i) {\n";
    value(what, type, array + "[i]", in + "  ");
    out_ += in + "}\n";
  }

  void pointer(What what, const Declaration& d, const std::string& at, const std::string& in) {
    if (what == What::kPut) {
      out_ += in + "TRY(clan_put_length(to, " + at + " != NULL, 1));\n";
    } else if (what == What::kGet) {
      out_ += in + "{\n" + in + "  void *memory;\n" + in +
              "  enum clan_shrimp_stat stat = clan_get_pointer(from, sizeof *" + at +
              ", &memory);\n" + in + "  " + at + " = (" + d.type.c + " *)memory;\n" + in +
              "  TRY(stat);\n" + in + "}\n";
    }
    out_ += in + "if (" + at + " != NULL) {\n";
    value(what, d.type, "(*" + at + ")", in + "  ");
    if (what == What::kGet) out_ += in + "  --from->depth;\n";
    if (what == What::kFree) out_ += in + "  free(" + at + ");\n" + in + "  " + at + " = NULL;\n";
    out_ += in + "}\n";
  }

  void counted(What what, const Declaration& d, const std::string& at, const std::string& in) {
    const std::string length = at + "." + d.name + "_len", elements = at + "." + d.name + "_val";
    const bool flat = d.shape == Shape::kOpaque || model_.is_flat(d.type);
    const bool get = what == What::kGet;
    if (what == What::kPut) {
      out_ += in + "TRY(clan_put_length(to, " + length + ", " + most(d) + "));\n";
      if (flat)
        out_ += in + "TRY(clan_put_bytes(to, " + elements + ", (size_t)" + length + " * sizeof *" +
                elements + "));\n";
    } else if (get) {
      out_ += in + "{\n" + in + "  void *memory;\n" + in +
              "  enum clan_shrimp_stat stat = clan_get_length(from, " + most(d) + ", " +
              (flat ? "sizeof *" + elements : "4") + ", sizeof *" + elements + ", &" + length +
              ", &memory);\n" + in + "  " + elements + " = (" + d.type.c + " *)memory;\n" + in +
              "  TRY(stat);\n" + in + "}\n";
      if (flat)
        out_ += in + "TRY(clan_get_bytes(from, " + elements + ", (size_t)" + length +
                " * sizeof *" + elements + "));\n";
    }
    // Elements may have arrays of their own type, as deep as a message is long.
    if (get && !flat)
      out_ += in + "if (++from->depth > CLAN_SHRIMP_DEPTH) return CLAN_SHRIMP_GARBAGE;\n";
    if (!flat) each(what, d.type, length, elements, in);
    if (get && !flat) out_ += in + "--from->depth;\n";
    if (what == What::kFree)
      out_ +=
          in + "free(" + elements + ");\n" + in + elements + " = NULL;\n" + in + length + " = 0;\n";
  }

  const Model& model_;
  std::string out_;
};

}  // namespace

std::string codec_of(const Model& model, const std::string& header) {
  return Codec(model).text(header);
}

}  // namespace clan::rpcgen
