// The header: types as rpcgen writes them, and what generated code and programs call.
#include "model.h"

namespace clan::rpcgen {
namespace {

using Shape = Declaration::Shape;

std::string bound_of(const Declaration& d) { return d.bound ? d.bound->text : ""; }

class Header {
 public:
  explicit Header(const Model& model) : model_(model) {}

  std::string text(const std::string& guard) {
    out_ = "/* Made by clan-rpcgen: changes belong into the .x file. */\n#ifndef " + guard +
           "\n#define " + guard +
           "\n\n#include <clan/shrimp.h>\n#include <sys/types.h>\n\n"
           "#ifndef TRUE\n#define TRUE 1\n#endif\n#ifndef FALSE\n#define FALSE 0\n#endif\n"
           "typedef int bool_t;\ntypedef unsigned char u_char;\ntypedef unsigned short u_short;\n"
           "typedef unsigned int u_int;\ntypedef unsigned long u_long;\ntypedef __quad_t quad_t;\n"
           "typedef __u_quad_t u_quad_t;\n\n";
    if (model_.needs_rpc()) out_ += "#include <rpc/rpc.h>\n\n";
    // A field or a typedef may point to what is declared later.
    for (const Definition& definition : model_.definitions()) {
      if (const auto* s = std::get_if<Struct>(&definition))
        out_ += "typedef struct " + s->name + " " + s->name + ";\n";
      if (const auto* u = std::get_if<Union>(&definition))
        out_ += "typedef struct " + u->name + " " + u->name + ";\n";
    }
    bool open = false;
    for (const Definition& definition : model_.definitions()) {
      // What is passed on may bring headers of its own.
      if (std::holds_alternative<Passed>(definition) == open) {
        out_ += open ? "#ifdef __cplusplus\n}\n#endif\n"
                     : "#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
        open = !open;
      }
      std::visit([this](const auto& d) { write(d); }, definition);
    }
    if (!open) out_ += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
    if (!model_.foreign().empty())
      out_ += "/* Of types that are declared elsewhere: the program's own. */\n";
    for (const std::string& name : model_.foreign()) routines(name, false);
    for (const ProgramVersion& version : model_.programs()) write(version);
    return out_ + "\n#ifdef __cplusplus\n}\n#endif\n#endif\n";
  }

 private:
  void write(const Passed& line) { out_ += line.line + "\n"; }
  void write(const Constant& c) { out_ += "#define " + c.name + " " + c.value.text + "\n\n"; }

  // The numbers, under the names that rpcgen gives them. A procedure may be in several versions.
  void write(const Program& program) {
    number(program.name, program.number);
    for (const Version& version : program.versions) {
      number(version.name, version.number);
      for (const Procedure& procedure : version.procedures)
        number(procedure.name, procedure.number);
    }
    out_ += "\n";
  }
  void number(const std::string& name, const Number& value) {
    if (numbers_.insert(name).second) out_ += "#define " + name + " " + value.text + "\n";
  }

  void routines(const std::string& name, bool flat) {
    if (flat) return void(out_ += "\n");
    out_ += "enum clan_shrimp_stat clan_put_" + name +
            "(clan_shrimp_bytes *to, const void *from);\n" + "enum clan_shrimp_stat clan_get_" +
            name + "(clan_shrimp_bytes *from, void *to);\n" + "void clan_free_" + name +
            "(void *value);\n\n";
  }

  void write(const Enum& e) {
    out_ += "enum " + e.name + " {\n";
    for (const auto& [name, value] : e.values)
      out_ += "  " + name + (value ? " = " + value->text : "") + ",\n";
    out_ += "};\ntypedef enum " + e.name + " " + e.name + ";\n\n";
  }

  void write(const Struct& s) {
    out_ += "struct " + s.name + " {\n";
    for (const Declaration& field : s.fields) out_ += "  " + in_c(field) + ";\n";
    out_ += "};\n";
    routines(s.name, model_.is_flat(TypeName{TypeName::Kind::kNamed, s.name}));
  }

  void write(const Union& u) {
    out_ += "struct " + u.name + " {\n  " + in_c(u.discriminant) + ";\n  union {\n";
    bool any = false;
    for (const auto& arm : u.arms) {
      if (arm.field.shape == Shape::kVoid) continue;
      out_ += "    " + in_c(arm.field) + ";\n";
      any = true;
    }
    out_ += std::string(any ? "" : "    char nothing;\n") + "  } " + u.name + "_u;\n};\n";
    routines(u.name, false);
  }

  void write(const Typedef& t) {
    out_ += "typedef " + in_c(t.declaration) + ";\n";
    routines(t.declaration.name, model_.is_flat(t.declaration));
  }

  static std::string pointer(const Value& value, const char* name) {
    return (value.is_void ? "void" : value.c) + " *" + name;
  }

  void write(const ProgramVersion& version) {
    out_ += "\n/* Program " + version.program + ", version " + version.version +
            ": for clan_shrimp_connect(), and for clan_shrimp_listen(). */\n" +
            "extern const clan_shrimp_program " + version.name +
            "_program;\nextern const clan_shrimp_program " + version.name + "_service;\n";
    for (const Stub& stub : version.stubs) {
      const std::string argument = pointer(stub.argument, "argument"),
                        result = pointer(stub.result, "result");
      out_ += "enum clan_shrimp_stat " + stub.name + "(" + argument + ", " + result +
              ", clan_shrimp_client *client);\n" + "enum clan_shrimp_stat " + stub.name + "_send(" +
              argument + ", clan_shrimp_client *client, uint64_t *ticket);\n" +
              "enum clan_shrimp_stat " + stub.name + "_wait(" + result +
              ", clan_shrimp_client *client, uint64_t ticket);\n" +
              "/* The server's own: 0 for failure. */\n" + "int " + stub.name + "_svc(" + argument +
              ", " + result + ", clan_shrimp_call *call);\n";
    }
  }

  const Model& model_;
  std::string out_;
  std::set<std::string> numbers_;  ///< names that have been defined
};

}  // namespace

std::string in_c(const Declaration& d) {
  const std::string& n = d.name;
  switch (d.shape) {
    case Shape::kVoid: return "void";
    case Shape::kPlain: return d.type.c + " " + n;
    case Shape::kFixed: return d.type.c + " " + n + "[" + bound_of(d) + "]";
    case Shape::kFixedOpaque: return "char " + n + "[" + bound_of(d) + "]";
    case Shape::kPointer: return d.type.c + " *" + n;
    case Shape::kString: return "char *" + n;
    case Shape::kCounted:
    case Shape::kOpaque:
      return "struct {\n    u_int " + n + "_len;\n    " + d.type.c + " *" + n + "_val;\n  } " + n;
  }
  return "";
}

std::string header_of(const Model& model, const std::string& guard) {
  return Header(model).text(guard);
}

}  // namespace clan::rpcgen
