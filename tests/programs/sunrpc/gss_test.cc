// RPCSEC_GSS: its calls go by the socket, those before and after them over CLAN, all of one handle.
// With a key distribution centre that gss.py has started, else skipped.
#include <optional>

#include "peers.h"

namespace clan {
namespace {

using namespace test;

// From <rpc/auth_gss.h>, which takes headers of Kerberos.
struct GssSecurity {
  void* mechanism;
  std::uint32_t quality;
  int service;
  void* credential;
  u_int flags;
};
extern "C" AUTH* authgss_create_default(CLIENT* client, char* service, GssSecurity* security);

enum Service { kNone = 1, kIntegrity = 2, kPrivacy = 3 };

class Gss : public testing::TestWithParam<Service> {
 protected:
  void SetUp() override {
    name_ = std::getenv("CLAN_TEST_GSS");
    if (name_ == nullptr) GTEST_SKIP() << "no key distribution centre: gss.py starts one";
    server_.emplace(std::vector<std::string>{"tcp", "udp", std::string("gss:") + name_});
    handles_.push_back(by_tcp(server_->tcp()));
    handles_.push_back(by_udp(server_->udp()));
    ASSERT_TRUE(handles_[0] && handles_[1]);
  }

  AUTH* secured(CLIENT* client) {
    static char krb5[] = "\052\206\110\206\367\022\001\002\002";
    struct {
      std::uint32_t length;
      void* elements;
    } static mechanism = {9, krb5};
    GssSecurity security{&mechanism, 0, GetParam(), nullptr, 2};  // mutual authentication
    return authgss_create_default(client, name_, &security);
  }

  /// Calls with RPCSEC_GSS, none of them over CLAN.
  void expect_secured(CLIENT* client) {
    AUTH* const none = client->cl_auth;
    const Paths before = paths();
    const std::uint64_t served = served_by_clan(server_->pid());
    AUTH* const auth = secured(client);
    ASSERT_NE(auth, nullptr) << clnt_sperror(client, "the context");
    client->cl_auth = auth;
    std::vector<char> bytes(3000, 'x');
    for (int i = 0; i < 3; ++i) {
      credential* caller = who_2(nullptr, client);
      ASSERT_NE(caller, nullptr) << clnt_sperror(client, "who");
      EXPECT_EQ(caller->flavor, RPCSEC_GSS);
      clnt_freeres(client, xdr_of(xdr_credential), caller);
      blob sent{static_cast<u_int>(bytes.size()), bytes.data()};
      blob* back = echo_2(&sent, client);
      ASSERT_NE(back, nullptr) << clnt_sperror(client, "echo");
      ASSERT_EQ(back->blob_len, bytes.size());
      EXPECT_EQ(std::memcmp(back->blob_val, bytes.data(), bytes.size()), 0);
      clnt_freeres(client, xdr_of(xdr_blob), back);
    }
    auth_destroy(auth);  // a call, too
    client->cl_auth = none;
    EXPECT_EQ(paths().clan, before.clan);
    EXPECT_EQ(served_by_clan(server_->pid()), served);
    if (preloaded()) {
      EXPECT_GE(paths().stock - before.stock, 7u);
    }
  }

  char* name_ = nullptr;
  std::optional<Server> server_;
  std::vector<Handle> handles_;
};

TEST_P(Gss, CallsOfAHandleGoByTheSocketAndThoseAroundThemOverClan) {
  for (const Handle& handle : handles_) {
    warm_up(handle.get());
    expect_secured(handle.get());
    for (int i = 0; i < 20; ++i) {
      const Paths before = paths();
      const int* negated = negate_2(&i, handle.get());
      ASSERT_NE(negated, nullptr) << clnt_sperror(handle.get(), "negate");
      EXPECT_EQ(*negated, -i);
      expect_clan(before, 1);
      if (i % 10 == 0) expect_secured(handle.get());
    }
  }
}

TEST_P(Gss, ThatIsTheFirstThingOfAHandleDoesNotKeepLaterCallsFromClan) {
  for (const Handle& handle : handles_) {
    expect_secured(handle.get());
    warm_up(handle.get());
  }
}

INSTANTIATE_TEST_SUITE_P(With, Gss, testing::Values(kNone, kIntegrity, kPrivacy));

}  // namespace
}  // namespace clan
