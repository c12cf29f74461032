#include "omniorb/name.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace clan::orb {
namespace {

TEST(Names, HostOfAnAddressIsWithoutItsPortAndItsBrackets) {
  EXPECT_EQ(host_of("10.0.0.1:4790"), "10.0.0.1");
  EXPECT_EQ(host_of("[fe80::1]:4790"), "fe80::1");
  EXPECT_EQ(host_of("host.example:1"), "host.example");
  EXPECT_EQ(host_of("[]:1"), "[]");
  for (const char* neither : {"", "10.0.0.1", ":1"}) EXPECT_EQ(host_of(neither), "") << neither;
}

TEST(Names, NumericHostsAreThoseThatNobodyHasToLookUp) {
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::1", "fe80::1:2", "::ffff:10.0.0.1"}) {
    EXPECT_TRUE(is_numeric(host)) << host;
  }
  for (const char* host : {"", "localhost", "10.0.0", "10.0.0.1.example", "1", "[::1]",
                           "fe80::1%eth0", "10.0.0.256"}) {
    EXPECT_FALSE(is_numeric(host)) << host;
  }
}

TEST(Names, OfAnotherHostStandUnderItWithANumberOfThisProcess) {
  const auto name = Name::of_text("1000-word", "10.0.0.1:4711");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->link, "10.0.0.1:4711");
  EXPECT_EQ(name->address(), "giop:clan:10.0.0.1:" + std::to_string(name->number));
  const auto back = Name::of_address(name->address().substr(kPrefix.size()));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->word, "word");
  EXPECT_EQ(back->link, name->link);
  EXPECT_EQ(back->uid, 1000u);
  // The same number at another host is a port.
  const auto port = Name::of_address("10.0.0.2:" + std::to_string(name->number));
  ASSERT_TRUE(port);
  EXPECT_EQ(port->word, "");
  EXPECT_EQ(port->host, "10.0.0.2");
}

TEST(Names, OfTheSameWordAreOthersBehindAnotherLink) {
  const auto here = Name::of_text("1000-same"), one = Name::of_text("1000-same", "[fe80::1]:1"),
             two = Name::of_text("1000-same", "[fe80::1]:2"),
             again = Name::of_text("1000-same", "[fe80::1]:1");
  ASSERT_TRUE(here && one && two && again);
  EXPECT_NE(here->address(), one->address());
  EXPECT_NE(one->address(), two->address());
  EXPECT_EQ(one->address(), again->address());
  EXPECT_EQ(one->address().substr(0, 20), "giop:clan:[fe80::1]:");
  EXPECT_EQ(Name::of_address(here->address().substr(kPrefix.size()))->link, "");
}

// A server that calls back one client after another must not run out of them.
TEST(Names, HaveTheirNumbersForAsLongAsSomebodyHasTheName) {
  const auto kept = Name::of_text("1000-kept");
  ASSERT_TRUE(kept);
  for (int i = 0; i < 200'000; ++i) {
    const auto name = Name::of_text("1000-" + std::to_string(i));
    ASSERT_TRUE(name) << i;
    ASSERT_NE(name->number, kept->number) << i;
    ASSERT_EQ(Name::of_address(name->address().substr(kPrefix.size()))->word, std::to_string(i));
  }
  EXPECT_EQ(Name::of_address(kept->address().substr(kPrefix.size()))->word, "kept");
  EXPECT_EQ(Name::of_text("1000-kept")->number, kept->number);
  std::string before;
  {
    const auto gone = Name::of_text("1000-gone");
    before = gone->address();
  }
  EXPECT_EQ(Name::of_address(before.substr(kPrefix.size()))->word, "");
}

TEST(Names, AreRefusedWhenAllNumbersAreTaken) {
  std::vector<Name> names;
  for (int i = 0; i < 70'000; ++i) {
    if (auto name = Name::of_text("1-" + std::to_string(i))) names.push_back(*std::move(name));
  }
  EXPECT_GT(names.size(), 65'000u);
  EXPECT_LT(names.size(), 65'536u);
  names.clear();
  EXPECT_TRUE(Name::of_text("1-again"));
}

TEST(Names, WithALinkThatWouldHaveToBeLookedUpOrIsNoneAreRefused) {
  for (const char* link : {"host.example:1", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x",
                           "10.0.0.1:65536", ":1", "10.0.0.1:1/other"}) {
    EXPECT_FALSE(Name::of_text("1000-word", link)) << link;
  }
  for (const char* text : {"", "word", "x-word", "1000-", "1000-wo rd", "1000-../word"}) {
    EXPECT_FALSE(Name::of_text(text)) << text;
  }
}

TEST(Names, AddressesThatAreNoneAreRefused) {
  for (const char* text : {"", "10.0.0.1", ":1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1"}) {
    EXPECT_FALSE(Name::of_address(text)) << text;
  }
  const auto nobody = Name::of_address("[::ffff:127.0.0.1]:65535");
  ASSERT_TRUE(nobody);
  EXPECT_EQ(nobody->number, 0);
}

}  // namespace
}  // namespace clan::orb
