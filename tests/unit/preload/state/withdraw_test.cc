#include "state/withdraw.h"

#include <fcntl.h>
#include <sys/un.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(Withdraw, ClosesWhatBelongsToAnOffer) {
  Socket s;
  const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const int window = ::dup(listener);
  s.offer_fd.keep(listener);
  s.window_fd.keep(window);
  withdraw_offer(s);
  EXPECT_EQ(s.offer_fd.get(), -1);
  EXPECT_EQ(s.window_fd.get(), -1);
  EXPECT_FALSE(is_open(listener));
  EXPECT_FALSE(is_open(window));
}

TEST(Withdraw, LeavesASocketOnTcpForGood) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  s.offer_fd.keep(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  stay(pair.fd(0), s, reasons::Why::kOnly);
  EXPECT_TRUE(s.stays_on_tcp());
  EXPECT_TRUE(is_the_kernels(pair.fd(0)));
  EXPECT_EQ(s.offer_fd.get(), -1);
}

TEST(Withdraw, NamesOfOffersFitTheAddressAndDiffer) {
  sockaddr_un one{}, other{};
  EXPECT_LE(path_of(1, &one), sizeof one);
  path_of(2, &other);
  EXPECT_STRNE(one.sun_path, other.sun_path);
  EXPECT_NE(std::string(one.sun_path).find(kOfferPrefix), std::string::npos);
}

}  // namespace
}  // namespace clan::preload
