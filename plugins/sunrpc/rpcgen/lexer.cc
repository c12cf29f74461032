#include "lexer.h"

#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace clan::rpcgen {
namespace {

constexpr int kMostIncludes = 16;

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Shared by a file and those it includes.
struct Session {
  std::map<std::string, std::string> macros;
  std::vector<Word> words;
  int depth = 0;
};

class Lexer {
 public:
  Lexer(Session& session, std::string file, const std::string& text)
      : session_(session), text_(text) {
    at_.file = std::move(file);
  }

  void run() {
    while (here() != 0) {
      if (at_.column == 1 && here() == '#') {
        directive();
      } else if (at_.column == 1 && here() == '%') {
        passed();
      } else if (skipping()) {
        rest_of_line();
        advance();
      } else {
        word();
      }
    }
    if (!branches_.empty()) throw Fault(branches_.back().at, "this #if has no #endif");
  }

 private:
  struct Branch {
    bool taken;    ///< one of its parts
    bool outside;  ///< what is around it is skipped
    bool now;      ///< this part is read
    Place at;
  };

  char here() const { return i_ < text_.size() ? text_[i_] : 0; }
  char next() const { return i_ + 1 < text_.size() ? text_[i_ + 1] : 0; }
  void advance() {
    if (here() == 0) {
      if (i_ < text_.size()) throw Fault(at_, "a zero byte: this is no text");
      return;
    }
    if (text_[i_++] == '\n') {
      ++at_.line;
      at_.column = 1;
    } else {
      ++at_.column;
    }
  }
  bool skipping() const { return !branches_.empty() && (!branches_.back().now || branches_.back().outside); }

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
    while (word.text.ends_with("\\") && here() == '\n') {
      advance();
      word.text += "\n" + rest_of_line();
    }
    if (!skipping()) session_.words.push_back(std::move(word));
  }

  // "#if" and its like see names that are defined, numbers, "defined NAME", "defined(NAME)" and '!'.
  bool condition(std::string text, const Place& at) const {
    if (const auto comment = text.find("/*"); comment != std::string::npos) text.resize(comment);
    bool wanted = true;
    std::istringstream words(text);
    std::string word, all;
    while (words >> word) all += word;
    while (!all.empty() && all.front() == '!') {
      wanted = !wanted;
      all.erase(0, 1);
    }
    if (all.starts_with("defined")) {
      all.erase(0, 7);
      if (all.starts_with("(") && all.ends_with(")")) all = all.substr(1, all.size() - 2);
      return (session_.macros.count(all) > 0) == wanted;
    }
    if (all.empty()) throw Fault(at, "a condition is missing here");
    if (std::isdigit(static_cast<unsigned char>(all[0])) != 0) return (all != "0") == wanted;
    for (const char c : all) {
      if (!in_name(c)) throw Fault(at, "conditions may be a name, a number or defined(NAME) here, not: " + text);
    }
    const auto macro = session_.macros.find(all);
    return (macro != session_.macros.end() && macro->second != "0") == wanted;
  }

  void directive() {
    const Place begin = at_;
    advance();
    std::string line = rest_of_line();
    const auto start = line.find_first_not_of(" \t");
    line = start == std::string::npos ? "" : line.substr(start);
    const std::string name = line.substr(0, line.find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
    std::string rest = line.substr(name.size());
    rest.erase(0, rest.find_first_not_of(" \t"));
    const std::string first = rest.substr(0, rest.find_first_of(" \t/"));
    if (name == "if" || name == "ifdef" || name == "ifndef") {
      const bool outside = skipping();
      const bool now = !outside && (name == "if" ? condition(rest, begin)
                                                 : (session_.macros.count(first) > 0) == (name == "ifdef"));
      branches_.push_back({now, outside, now, begin});
    } else if (name == "else" || name == "elif" || name == "endif") {
      if (branches_.empty()) throw Fault(begin, "#" + name + " without an #if");
      Branch& branch = branches_.back();
      if (name == "endif") {
        branches_.pop_back();
      } else {
        branch.now = !branch.taken && (name == "else" || condition(rest, begin));
        branch.taken = branch.taken || branch.now;
      }
    } else if (skipping()) {
      return;
    } else if (name == "define") {
      std::string value = rest.substr(first.size());
      value.erase(0, value.find_first_not_of(" \t"));
      session_.macros[first] = value;
    } else if (name == "undef") {
      session_.macros.erase(first);
    } else if (name == "include") {
      include(rest, begin);
    } else if (!name.empty() && name != "pragma" && name != "ident" && name != "line") {
      throw Fault(begin, "#" + name + " is not understood here");
    }
  }

  void include(const std::string& rest, const Place& begin) {
    const auto end = rest.find('"', 1);
    if (rest.empty() || rest[0] != '"' || end == std::string::npos) {
      throw Fault(begin, "only #include \"FILE\" is understood; what is for the compiler begins with a '%'");
    }
    const auto slash = at_.file.rfind('/');
    const std::string file = (slash == std::string::npos ? "" : at_.file.substr(0, slash + 1)) + rest.substr(1, end - 1);
    std::ifstream in(file);
    if (!in) throw Fault(begin, file + " cannot be read");
    if (++session_.depth > kMostIncludes) throw Fault(begin, "files include each other");
    std::stringstream text;
    text << in.rdbuf();
    const std::string content = text.str();
    Lexer(session_, file, content).run();
    --session_.depth;
  }

  void word() {
    const Place begin = at_;
    const char c = here();
    if (std::isspace(static_cast<unsigned char>(c)) != 0) return advance();
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
      const auto macro = session_.macros.find(word.text);
      if (macro != session_.macros.end() && !macro->second.empty()) return replace(macro->second, begin);
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 || (c == '-' && std::isdigit(static_cast<unsigned char>(next())) != 0)) {
      word.kind = Word::Kind::kNumber;
      do {
        word.text += here();
        advance();
      } while (in_name(here()));
    } else if (c == '"') {  // of a constant for C
      word.kind = Word::Kind::kNumber;
      do {
        word.text += here();
        advance();
      } while (here() != '"' && here() != 0 && here() != '\n');
      if (here() != '"') throw Fault(begin, "this string has no end on its line");
      word.text += here();
      advance();
    } else if (std::string("{}[]<>()*,;:=").find(c) != std::string::npos) {
      word.text = c;
      advance();
    } else {
      const bool shown = std::isprint(static_cast<unsigned char>(c)) != 0;
      throw Fault(begin, shown ? std::string("'") + c + "' has no meaning here" : "a byte that is no text");
    }
    session_.words.push_back(std::move(word));
  }

  // A macro stands for one word.
  void replace(const std::string& value, const Place& begin) {
    const bool number = std::isdigit(static_cast<unsigned char>(value[0])) != 0 || value[0] == '-' || value[0] == '"';
    std::string text = value.substr(0, value.find_first_of(" \t/"));
    session_.words.push_back({number ? Word::Kind::kNumber : Word::Kind::kName, std::move(text), begin});
  }

  void comment(const Place& begin) {
    advance();
    advance();
    while (here() != 0 && !(here() == '*' && next() == '/')) advance();
    if (here() == 0) throw Fault(begin, "this comment has no end");
    advance();
    advance();
  }

  Session& session_;
  const std::string& text_;
  std::size_t i_ = 0;
  Place at_;
  std::vector<Branch> branches_;
};

}  // namespace

std::vector<Word> words_of(const std::string& file, const std::string& text, std::set<std::string> defined) {
  Session session;
  for (const std::string& name : defined) session.macros[name] = "1";
  Lexer(session, file, text).run();
  Place end{file, 1, 1};
  for (const char c : text) {
    if (c == '\n') ++end.line;
  }
  session.words.push_back({Word::Kind::kEnd, "the end of the file", end});
  return session.words;
}

}  // namespace clan::rpcgen
