// One call to the server whose reference is the first argument; prints by which path it went, and stays connected for
// as many seconds as the second says, behind as many further calls as the third says. Not linked with the transport: it
// comes by LD_PRELOAD or not at all.
#include <cstdio>

#include "server.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    suite::Orb orb;
    Suite::Server_var server = orb.server(argv[1]);
    server->null_call();
    std::printf("%s\n", suite::last_path().c_str());
    std::fflush(stdout);
    for (int i = argc > 3 ? std::atoi(argv[3]) : 0; i > 0; --i) server->null_call();
    if (argc > 2) ::sleep(static_cast<unsigned>(std::atoi(argv[2])));
    return 0;
  } catch (const CORBA::Exception& problem) {
    std::printf("%s\n", problem._name());
    return 1;
  }
}
