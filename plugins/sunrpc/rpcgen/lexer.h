// Words of an .x file: RFC 4506's and '%' lines, each with its place.
#pragma once

#include <cstdint>
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
      : std::runtime_error(at.file + ":" + std::to_string(at.line) + ":" +
                           std::to_string(at.column) + ": " + text) {}
};

struct Word {
  enum class Kind { kEnd, kName, kNumber, kMark, kPassed };
  Kind kind = Kind::kEnd;
  std::string text;  ///< of kPassed: the line behind the '%'
  Place at;
};

/// Takes a text apart that the preprocessor has seen: lines that begin with '#' say what file and
/// line follows. It draws blanks together; where the file can be read, columns are the file's all
/// the same. Throws Fault.
std::vector<Word> words_of(const std::string& file, const std::string& text);

}  // namespace clan::rpcgen
