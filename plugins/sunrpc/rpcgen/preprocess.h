// The C preprocessor, run on .x files as rpcgen does.
#pragma once

#include <string>
#include <vector>

namespace clan::rpcgen {

/// What `cpp -C -DRPC_HDR OPTIONS FILE` prints, with marks that say which line of which file
/// follows. False: there is no cpp, or it has refused the file and said why on descriptor 2.
bool preprocess(const std::string& file, const std::vector<std::string>& options,
                std::string* text);

}  // namespace clan::rpcgen
