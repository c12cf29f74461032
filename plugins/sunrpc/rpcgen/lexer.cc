#include "lexer.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace clan::rpcgen {
namespace {

constexpr int kMostLines = 1'000'000'000;

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The lines of files, as far as they can be read.
class Sources {
 public:
  const std::string& line(const std::string& file, int number) {
    static const std::string none;
    auto at = files_.find(file);
    if (at == files_.end()) at = files_.emplace(file, read(file)).first;
    const auto index = static_cast<std::size_t>(number) - 1;
    return index < at->second.size() ? at->second[index] : none;
  }

 private:
  static std::vector<std::string> read(const std::string& file) {
    std::vector<std::string> lines;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  std::map<std::string, std::vector<std::string>> files_;
};

class Lexer {
 public:
  Lexer(std::string file, const std::string& text) : text_(text) { at_.file = std::move(file); }

  std::vector<Word> run() {
    while (here() != 0) {
      if (at_.column == 1 && here() == '#') {
        line_mark();
      } else if (at_.column == 1 && here() == '%') {
        passed();
      } else {
        word();
      }
    }
    words_.push_back({Word::Kind::kEnd, "the end of the file", at_});
    return std::move(words_);
  }

 private:
  char here() const { return i_ < text_.size() ? text_[i_] : '\0'; }
  char next() const { return i_ + 1 < text_.size() ? text_[i_ + 1] : '\0'; }
  void advance() {
    if (here() == 0) {
      if (i_ < text_.size()) throw Fault(at_, "a zero byte: this is no text");
      return;
    }
    if (text_[i_++] == '\n') {
      ++at_.line;
      at_.column = 1;
      line_begins_ = i_;
    } else {
      ++at_.column;
    }
  }
  std::string rest_of_line() {
    std::string rest;
    while (here() != 0 && here() != '\n') {
      rest += here();
      advance();
    }
    if (!rest.empty() && rest.back() == '\r') rest.pop_back();
    return rest;
  }

  void passed() {
    Word word{Word::Kind::kPassed, "", at_};
    advance();
    word.text = rest_of_line();
    // The preprocessor takes away what joins lines, and leaves them apart.
    for (int line = word.at.line; here() == '\n' && sources_.line(at_.file, line).ends_with("\\");
         ++line) {
      advance();
      word.text += " \\\n" + rest_of_line();
    }
    words_.push_back(std::move(word));
  }

  // `# 12 "FILE" flags`: what follows is its line 12. Others, as #pragma, are for the compiler.
  void line_mark() {
    const Place begin = at_;
    advance();
    std::istringstream words(rest_of_line());
    int line = 0;
    std::string file;
    advance();
    if (!(words >> line)) return;
    std::getline(words >> std::ws, file);
    const auto end = file.find('"', 1);
    if (line < 0 || line > kMostLines || file.empty() || file[0] != '"' ||
        end == std::string::npos) {
      throw Fault(begin, "a line mark that makes no sense");
    }
    at_.file = file.substr(1, end - 1);
    at_.line = line;
  }

  // The place of the next character. In the file's line it comes behind as many others that are no
  // blanks.
  Place place() {
    Place found = at_;
    const std::string& line = sources_.line(at_.file, at_.line);
    auto before = std::count_if(text_.begin() + static_cast<std::ptrdiff_t>(line_begins_),
                                text_.begin() + static_cast<std::ptrdiff_t>(i_),
                                [](char c) { return !is_blank(c); });
    for (std::size_t column = 0; column < line.size(); ++column) {
      if (is_blank(line[column]) || before-- > 0) continue;
      // else a macro stood there
      if (line[column] == here()) found.column = static_cast<int>(column) + 1;
      break;
    }
    return found;
  }

  void word() {
    const char c = here();
    if (is_blank(c)) return advance();
    const Place begin = place();
    if (c == '/' && next() == '*') return comment(begin);
    if (c == '/' && next() == '/') {
      rest_of_line();
      return;
    }
    Word word{Word::Kind::kMark, "", begin};
    if (begins_name(c)) {
      word.kind = Word::Kind::kName;
      while (in_name(here())) {
        word.text += here();
        advance();
      }
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 ||
               (c == '-' && std::isdigit(static_cast<unsigned char>(next())) != 0)) {
      word.kind = Word::Kind::kNumber;
      do {
        word.text += here();
        advance();
      } while (in_name(here()));
    } else if (c == '"' || c == '\'') {  // of a constant for C
      word.kind = Word::Kind::kNumber;
      do {
        word.text += here();
        advance();
      } while (here() != c && here() != 0 && here() != '\n');
      if (here() != c) throw Fault(begin, "this string has no end on its line");
      word.text += here();
      advance();
    } else if (std::string("{}[]<>()*,;:=").find(c) != std::string::npos) {
      word.text = c;
      advance();
    } else {
      const bool shown = std::isprint(static_cast<unsigned char>(c)) != 0;
      throw Fault(
          begin, shown ? std::string("'") + c + "' has no meaning here" : "a byte that is no text");
    }
    words_.push_back(std::move(word));
  }

  void comment(const Place& begin) {
    advance();
    advance();
    while (here() != 0 && !(here() == '*' && next() == '/')) advance();
    if (here() == 0) throw Fault(begin, "this comment has no end");
    advance();
    advance();
  }

  const std::string& text_;
  std::size_t i_ = 0;
  std::size_t line_begins_ = 0;
  Place at_;
  Sources sources_;
  std::vector<Word> words_;
};

}  // namespace

std::vector<Word> words_of(const std::string& file, const std::string& text) {
  return Lexer(file, text).run();
}

}  // namespace clan::rpcgen
