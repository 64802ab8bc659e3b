#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace shardtune::options {

/// A NAME = VALUE line of an INI file. The value may be empty.
struct IniLine {
  std::string name;
  std::string value;
  std::string place;  ///< "FILE:LINE", for messages
};

/// The lines of a regular file in their order, without comments and blanks around names and values. Sections are checked and
/// left out: they group lines for the reader. `what` says in messages what the file is for ("option config"). Error(kUsage)
/// when it cannot be read, and with its place for a line of another form.
std::vector<IniLine> read_ini_lines(const std::string& path, std::string_view what);

}  // namespace shardtune::options
