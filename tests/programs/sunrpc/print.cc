// Makes calls of every.x and prints their results: by rpcgen's stubs (sunrpc-print PORT), or by
// clan-rpcgen's (shrimp-print NAME). The output must be the same.
#ifndef SHRIMP
#include <arpa/inet.h>
#include <netinet/in.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "every.h"
#include "every_values.h"

namespace {

#ifdef SHRIMP
clan_shrimp_client* client = nullptr;
bool connect_to(const char* name) {
  client = clan_shrimp_connect(name, &every_2_program, 10'000);
  return client != nullptr;
}
bool turn(everything* in, everything* out) { return turn_2(in, out, client) == CLAN_SHRIMP_OK; }
bool maybe(everything* in, answer* out) { return maybe_2(in, out, client) == CLAN_SHRIMP_OK; }
bool negate(int* in, int* out) { return negate_2(in, out, client) == CLAN_SHRIMP_OK; }
bool count(blob* in, u_int* out) { return count_2(in, out, client) == CLAN_SHRIMP_OK; }
bool echo(blob* in, blob* out) { return echo_2(in, out, client) == CLAN_SHRIMP_OK; }
#else
CLIENT* client = nullptr;
bool connect_to(const char* port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<unsigned short>(std::atoi(port)));
  int fd = RPC_ANYSOCK;
  client = clnttcp_create(&to, EVERY, EVERY_NEW, &fd, 0, 0);
  return client != nullptr;
}
template <typename In, typename Out, typename Stub>
bool call(Stub* stub, In* in, Out* out) {
  Out* result = stub(in, client);
  if (result != nullptr) *out = *result;
  return result != nullptr;
}
bool turn(everything* in, everything* out) { return call(turn_2, in, out); }
bool maybe(everything* in, answer* out) { return call(maybe_2, in, out); }
bool negate(int* in, int* out) { return call(negate_2, in, out); }
bool count(blob* in, u_int* out) { return call(count_2, in, out); }
bool echo(blob* in, blob* out) { return call(echo_2, in, out); }
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !connect_to(argv[1])) {
    std::perror("connect");
    return 2;
  }
  for (int first = 0; first < 3; ++first) {
    everything in = sample(first), out{};
    if (!turn(&in, &out)) return 1;
    std::printf("turn: %s", text_of(out).c_str());
    answer replied{};
    if (!maybe(&in, &replied)) return 1;
    std::printf("maybe: %d\n%s", replied.status,
                replied.status == 0 ? text_of(replied.answer_u.same).c_str() : "");
  }
  int value = -17, negated = 0;
  if (!negate(&value, &negated)) return 1;
  std::printf("negate: %d\n", negated);
  for (const unsigned size : {0u, 1u, 40u, 41u, 8000u, 9000u, 3'000'000u}) {
    std::vector<char> bytes(size + 1);
    for (unsigned i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 256);
    blob in{}, out{};
    in.blob_len = size;
    in.blob_val = bytes.data();
    u_int sum = 0;
    if (!count(&in, &sum) || !echo(&in, &out)) return 1;
    std::printf(
        "count of %u: %u, echo %s\n", size, sum,
        out.blob_len == size && (size == 0 || std::memcmp(out.blob_val, in.blob_val, size) == 0)
            ? "same"
            : "differs");
  }
  return 0;
}
