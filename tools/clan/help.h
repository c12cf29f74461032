// How the help of `clan` and its commands is laid out.
#pragma once

#include <cstddef>
#include <string>

namespace clan::tool {

/// Lays `text` out in lines of at most `width` columns: a line that is longer goes on below its own
/// text or, where it has two columns, below the second one.
std::string wrapped(const std::string& text, std::size_t width);

/// Asks how wide the terminal is. Without one, COLUMNS, else 80.
std::size_t terminal_width();

}  // namespace clan::tool
