// A client of every.x on another host, which runs commands: sunrpc-far-client ADDRESS PORT tcp|udp
//
//   negate NUMBER, echo BYTES, sleep MS, served, timeout MS    each answered with a line:
//   STATUS VALUE FAR CLAN STOCK                                a clnt_stat, what came, and the
//                                                              calls so far, by path
#include <cstdio>
#include <iostream>

#include "peers.h"

namespace {

using namespace clan::test;

long long value = 0;

enum clnt_stat echo(CLIENT* client, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
  blob sent{static_cast<u_int>(bytes), text.data()}, back{};
  const enum clnt_stat stat =
      clnt_call(client, ECHO, xdr_of(xdr_blob), &sent, xdr_of(xdr_blob), &back, kLong);
  value = stat == RPC_SUCCESS && back.blob_len == bytes &&
          std::memcmp(back.blob_val, text.data(), bytes) == 0;
  clnt_freeres(client, xdr_of(xdr_blob), &back);
  return stat;
}

enum clnt_stat one(CLIENT* client, const std::string& what, int number) {
  int result = 0;
  enum clnt_stat stat = RPC_SUCCESS;
  if (what == "echo") return echo(client, static_cast<std::size_t>(number));
  if (what == "negate" || what == "sleep") {
    stat = clnt_call(client, what == "negate" ? NEGATE : SLEEP, xdr_of(xdr_int), &number,
                     xdr_of(xdr_int), &result, kLong);
    value = result;
  } else if (what == "served") {
    quad_t served = 0;
    stat = clnt_call(client, SERVED, xdr_of(xdr_void), nullptr, xdr_of(xdr_quad_t), &served, kLong);
    value = served;
  } else if (what == "timeout") {
    timeval limit{number / 1000, number % 1000 * 1000};
    value = clnt_control(client, CLSET_TIMEOUT, reinterpret_cast<char*>(&limit));
  }
  return stat;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sockaddr_in to = at_port(std::atoi(argv[2]));
  inet_pton(AF_INET, argv[1], &to.sin_addr);
  int fd = RPC_ANYSOCK;
  CLIENT* client = std::string(argv[3]) == "tcp"
                       ? clnttcp_create(&to, EVERY, EVERY_NEW, &fd, 0, 0)
                       : clntudp_create(&to, EVERY, EVERY_NEW, timeval{1, 0}, &fd);
  if (client == nullptr) return 3;
  std::string what;
  int number = 0;
  while (std::cin >> what >> number) {
    value = 0;
    const enum clnt_stat stat = one(client, what, number);
    const auto page = page_of(getpid());
    const auto count = [&](auto counter) { return page ? ((*page).*counter).load() : 0; };
    std::printf("%d %lld %llu %llu %llu\n", stat, value,
                static_cast<unsigned long long>(count(&clan::RpcPage::calls_far)),
                static_cast<unsigned long long>(count(&clan::RpcPage::calls_clan)),
                static_cast<unsigned long long>(count(&clan::RpcPage::calls_stock)));
    std::fflush(stdout);
  }
  clnt_destroy(client);
  return 0;
}
