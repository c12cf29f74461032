// The client's stubs and the server's skeleton.
#include <cstdio>

#include "model.h"

namespace clan::rpcgen {
namespace {

constexpr const char* kBegin =
    "/* Made by clan-rpcgen: changes belong into the .x file. */\n#include \"";

std::string pointer(const Value& value, const char* name) {
  return (value.is_void ? "void" : value.c) + std::string(" *") + name;
}

std::string program(const ProgramVersion& version, const char* suffix, std::uint64_t hash,
                    const std::string& count, const std::string& procedures) {
  for (const char c : version.name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char number[32];
  std::snprintf(number, sizeof number, "0x%016llxull", static_cast<unsigned long long>(hash));
  return "\nconst clan_shrimp_program " + version.name + suffix + " = {\"" + version.name + "\", " +
         number + ", " + count + ", " + procedures + "};\n";
}

// The members of a clan_shrimp_request.
std::string request(const Stub& stub, bool argument, bool result) {
  const Value& a = stub.argument;
  const Value& r = stub.result;
  std::string text = "  const clan_shrimp_request request = {" + stub.number + ", ";
  text += !argument || a.is_void ? "NULL, 0, NULL, "
                                 : "argument, " + (a.flat ? "sizeof *argument, NULL, "
                                                          : "0, clan_put_" + a.codec + ", ");
  text += !result || r.is_void ? "NULL, 0, NULL};\n"
                               : "result, " + (r.flat ? "sizeof *result, NULL};\n"
                                                      : "0, clan_get_" + r.codec + "};\n");
  return text;
}

// Results that came in part are freed.
std::string checked(const Stub& stub, const std::string& call) {
  if (stub.result.is_void || stub.result.flat) return "  return " + call + ";\n";
  return "  memset(result, 0, sizeof *result);\n  enum clan_shrimp_stat stat = " + call + ";\n" +
         "  if (stat != CLAN_SHRIMP_OK) clan_free_" + stub.result.codec +
         "(result);\n  return stat;\n";
}

std::string unused(bool argument, bool result) {
  return std::string(argument ? "  (void)argument;\n" : "") + (result ? "  (void)result;\n" : "");
}

std::string skeleton(const Stub& stub) {
  const Value& a = stub.argument;
  const Value& r = stub.result;
  std::string out = "\nstatic enum clan_shrimp_stat serve_" + stub.name +
                    "(clan_shrimp_call *call) {\n" +
                    "  enum clan_shrimp_stat stat = CLAN_SHRIMP_OK;\n";
  if (!a.is_void && a.flat) {
    // A copy: the client can still write what lies in the slot.
    out += "  char small[sizeof(" + a.c + ") <= 4096 ? sizeof(" + a.c +
           ") : 1] __attribute__((aligned(16)));\n  " + a.c + " *argument = (" + a.c +
           " *)(sizeof(" + a.c + ") <= 4096 ? (void *)small : malloc(sizeof(" + a.c + ")));\n" +
           "  if (argument == NULL) return CLAN_SHRIMP_NO_MEMORY;\n" +
           "  stat = clan_shrimp_arguments(call, argument, sizeof *argument, NULL);\n";
  } else if (!a.is_void) {
    // What is freed below is what has been decoded, also where nothing has.
    out += "  " + a.c +
           " value, *argument = &value;\n  memset(argument, 0, sizeof *argument);\n  stat = "
           "clan_shrimp_arguments(call, argument, 0, clan_get_" +
           a.codec + ");\n";
  } else {
    out += "  void *argument = NULL;\n";
  }
  if (r.is_void) {
    out += "  if (stat == CLAN_SHRIMP_OK && !" + stub.name +
           "_svc(argument, NULL, call)) stat = CLAN_SHRIMP_REFUSED;\n";
  } else if (r.flat) {
    out +=
        "  if (stat == CLAN_SHRIMP_OK) {\n    " + r.c + " *result = (" + r.c +
        " *)clan_shrimp_in_place(call, sizeof *result);\n    if (result == NULL) {\n      stat = "
        "CLAN_SHRIMP_TOO_LARGE;\n" +
        "    } else if (!" + stub.name +
        "_svc(argument, result, call)) {\n      stat = CLAN_SHRIMP_REFUSED;\n    }\n  }\n";
  } else {
    out += "  if (stat == CLAN_SHRIMP_OK) {\n    " + r.c +
           " result;\n    memset(&result, 0, sizeof result);\n    stat = " + stub.name +
           "_svc(argument, &result, call) ? clan_shrimp_results(call, &result, clan_put_" +
           r.codec + ") : CLAN_SHRIMP_REFUSED;\n    clan_free_" + r.codec + "(&result);\n  }\n";
  }
  if (!a.is_void && a.flat) out += "  if (sizeof *argument > 4096) free(argument);\n";
  if (!a.is_void && !a.flat) out += "  clan_free_" + a.codec + "(argument);\n";
  return out + "  return stat;\n}\n";
}

}  // namespace

std::string client_of(const Model& model, const std::string& header, std::uint64_t hash) {
  std::string out = kBegin + header + "\"\n";
  for (const ProgramVersion& version : model.programs()) {
    out += program(version, "_program", hash, "0", "NULL");
    for (const Stub& stub : version.stubs) {
      const std::string argument = pointer(stub.argument, "argument"),
                        result = pointer(stub.result, "result");
      out += "\nenum clan_shrimp_stat " + stub.name + "(" + argument + ", " + result +
             ", clan_shrimp_client *client) {\n" +
             unused(stub.argument.is_void, stub.result.is_void) + request(stub, true, true) +
             checked(stub, "clan_shrimp_do(client, &request)") + "}\n";
      out += "\nenum clan_shrimp_stat " + stub.name + "_send(" + argument +
             ", clan_shrimp_client *client, uint64_t *ticket) {\n" +
             unused(stub.argument.is_void, false) + request(stub, true, false) +
             "  return clan_shrimp_send(client, &request, ticket);\n}\n";
      out += "\nenum clan_shrimp_stat " + stub.name + "_wait(" + result +
             ", clan_shrimp_client *client, uint64_t ticket) {\n" +
             unused(false, stub.result.is_void) + request(stub, false, true) +
             checked(stub, "clan_shrimp_wait(client, &request, ticket)") + "}\n";
    }
  }
  return out;
}

std::string server_of(const Model& model, const std::string& header, std::uint64_t hash) {
  std::string out = kBegin + header + "\"\n";
  for (const ProgramVersion& version : model.programs()) {
    std::string table;
    for (const Stub& stub : version.stubs) {
      out += skeleton(stub);
      table += "    {" + stub.number + ", serve_" + stub.name + "},\n";
    }
    out += "\nstatic const clan_shrimp_procedure " + version.name + "_procedures[] = {\n" + table +
           "};\n" +
           program(version, "_service", hash, std::to_string(version.stubs.size()),
                   version.name + "_procedures");
  }
  return out;
}

}  // namespace clan::rpcgen
