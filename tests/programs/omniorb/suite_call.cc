// One call to the server whose reference is the first argument; prints by which path it went, and
// stays connected for as many seconds as the second says, behind as many further calls as the third
// says, of which -1 is as many as it takes until they go another way: then it prints what they met
// with, and that way. A fourth: each carries so many bytes there and back. A fifth: for at most so
// many seconds, and prints when each stretch of 200 calls began. Options of the ORB may stand
// anywhere. Not linked with the transport: it comes by LD_PRELOAD or not at all.
#include <cstdio>
#include <ctime>
#include <vector>

#include "server.h"

namespace {

void call(Suite::Server_ptr server, CORBA::ULong bytes) {
  if (bytes == 0) return server->null_call();
  Suite::Bytes data;
  data.length(bytes);
  for (CORBA::ULong i = 0; i < bytes; ++i) data[i] = static_cast<CORBA::Octet>(i * 7 + (i >> 8));
  Suite::Bytes_var back = server->turn(data);
  if (back->length() != bytes) throw CORBA::INTERNAL();
  for (CORBA::ULong i = 0; i < bytes; ++i) {
    if (back[i] != data[bytes - 1 - i]) throw CORBA::INTERNAL();
  }
}

void call_until_moved(Suite::Server_ptr server, CORBA::ULong bytes) {
  const std::string before = suite::last_path();
  for (int i = 0; suite::last_path() == before && i < 60'000; ++i) {
    try {
      call(server, bytes);
    } catch (const CORBA::Exception& problem) {
      std::printf("%s\n", problem._name());
    }
    ::usleep(1000);
  }
  std::printf("%s\n", suite::last_path().c_str());
}

double now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);  // no system call
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void call_in_stretches(Suite::Server_ptr server, int calls, CORBA::ULong bytes, int seconds) {
  constexpr int kStretch = 200;
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(calls) / kStretch + 1);
  const double end = now() + seconds;
  for (int i = 0; i < calls; ++i) {
    if (i % kStretch == 0) times.push_back(now());
    if (times.back() > end) break;
    call(server, bytes);
  }
  for (const double time : times) std::printf("%.6f\n", time);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> options, words;
  for (int i = 1; i < argc; ++i) {
    const bool option = std::strncmp(argv[i], "-ORB", 4) == 0 && i + 1 < argc;
    if (option) options.insert(options.end(), {argv[i], argv[i + 1]});
    if (!option) words.push_back(argv[i]);
    i += option ? 1 : 0;
  }
  if (words.empty()) return 2;
  const auto number = [&](std::size_t at) {
    return words.size() > at ? std::atoi(words[at].c_str()) : 0;
  };
  try {
    suite::Orb orb(options);
    Suite::Server_var server = orb.server(words[0]);
    server->null_call();
    std::printf("%s\n", suite::last_path().c_str());
    std::fflush(stdout);
    const auto bytes = static_cast<CORBA::ULong>(number(3));
    if (number(4) > 0) {
      call_in_stretches(server, number(2), bytes, number(4));
    } else {
      for (int i = number(2); i > 0; --i) call(server, bytes);
    }
    if (number(2) < 0) call_until_moved(server, bytes);
    ::sleep(static_cast<unsigned>(number(1)));
    return 0;
  } catch (const CORBA::Exception& problem) {
    std::printf("%s\n", problem._name());
    return 1;
  }
}
