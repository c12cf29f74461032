// Words of an .x file: RFC 4506's, what rpcgen adds ('%' lines, preprocessor lines), each with its place.
#pragma once

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace clan::rpcgen {

struct Place {
  std::string file;
  int line = 1;
  int column = 1;
};

/// What is wrong with a file: "FILE:LINE:COLUMN: text".
class Fault : public std::runtime_error {
 public:
  Fault(const Place& at, const std::string& text)
      : std::runtime_error(at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + text) {}
};

struct Word {
  enum class Kind { kEnd, kName, kNumber, kMark, kPassed };
  Kind kind = Kind::kEnd;
  std::string text;  ///< of kPassed: the line behind the '%'
  Place at;
};

/// Takes a text apart. Lines that begin with '#' are obeyed as far as .x files need it: if, ifdef, ifndef, else,
/// elif, endif, define of a name (with a word for it or without), undef, include of a file in quotes. `defined`:
/// names that are defined at the beginning. Throws Fault.
std::vector<Word> words_of(const std::string& file, const std::string& text, std::set<std::string> defined);

}  // namespace clan::rpcgen
