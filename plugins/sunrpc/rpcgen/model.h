// What the writers of C know of an interface: which types there are, and which are flat.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "interface.h"

namespace clan::rpcgen {

/// The type of an argument or a result of a procedure.
struct Value {
  bool is_void = true;
  std::string c;      ///< its name in C
  bool flat = false;  ///< no pointers in it, whatever they are called: copied as it is
  std::string codec;  ///< of the three routines clan_put_, clan_get_, clan_free_; "" if it is flat
};

struct Stub {
  std::string name;  ///< negate_2
  std::string number;
  Value argument;
  Value result;
};

struct ProgramVersion {
  std::string name;  ///< every_2
  std::string program;
  std::string version;
  std::vector<Stub> stubs;
};

class Model {
 public:
  /// Throws Fault: a type that the file does not declare, or too late for C.
  explicit Model(Interface interface);
  /// With types made up for procedures of several arguments, and for those that have strings or
  /// pointers.
  const std::vector<Definition>& definitions() const { return definitions_; }
  const std::vector<ProgramVersion>& programs() const { return programs_; }
  /// Types that only a header declares. Programs have their three routines.
  const std::set<std::string>& foreign() const { return foreign_; }
  bool needs_rpc() const { return needs_rpc_; }  ///< some are <rpc/rpc.h>'s
  bool is_flat(const Declaration& d) const;
  bool is_flat(const TypeName& type) const;

 private:
  void learn(const Definition& definition);
  void note(const Definition& definition);
  void check(const Declaration& d);
  void add_program(const Program& program);
  Value value_of(const Declaration& d, const std::string& name);
  void make(Definition made);

  std::vector<Definition> definitions_;
  std::vector<ProgramVersion> programs_;
  std::map<std::string, bool> flat_;  ///< of named types
  std::set<std::string> declared_;
  std::set<std::string> foreign_;
  bool needs_rpc_ = false;
  bool includes_ = false;  ///< a '%' line includes a header
};

/// Throws Fault: a type is used where C does not know it yet. The names of structs and unions stand
/// ahead of all.
void check_order(const std::vector<Definition>& definitions);

/// What an interface is known by: changes with every word of the file that is not a comment.
std::uint64_t hash_of(const std::vector<Word>& words);

/// `blob *value` and the like: a declaration in C, without a semicolon.
std::string in_c(const Declaration& d);

std::string header_of(const Model& model, const std::string& guard);
std::string codec_of(const Model& model, const std::string& header);
std::string client_of(const Model& model, const std::string& header, std::uint64_t hash);
std::string server_of(const Model& model, const std::string& header, std::uint64_t hash);

}  // namespace clan::rpcgen
