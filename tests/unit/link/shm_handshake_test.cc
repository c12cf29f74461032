// Each step of the handshake by itself. Peers that do it wrong:
// tests/unit/adversarial/handshake_test.cc.
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "clan/detail/clock.h"
#include "link/shm_pair.h"

namespace clan::link {
namespace {

using Handshake = test::ShmMeeting;
using test::must;

const shm::NicHeader& header_of(const ShmPeer& peer) {
  return reinterpret_cast<const shm::NicTables*>(peer.tables.data())->header;
}
std::atomic<std::uint64_t>& help_wanted(const ShmPeer& peer) {
  return reinterpret_cast<shm::NicSignals*>(peer.signals.data())->help_wanted;
}

TEST_F(Handshake, TellsEachEndWhatTheOtherIsAndWhereItWrites) {
  (void)must(client.nic->add_peer_slot());  // other peers', so that the numbers differ
  for (int k = 0; k < 2; ++k) (void)must(server.nic->add_peer_slot());
  ShmPeer of_client = must(begin());
  const ShmPeer of_server = must(answered(7));
  std::uint32_t endpoint = 0;
  ASSERT_OK(finish_dial(of_client, &endpoint));
  EXPECT_EQ(endpoint, 7u);
  EXPECT_EQ(of_client.node, server.node);
  EXPECT_EQ(of_server.node, client.node);
  EXPECT_EQ(of_client.peer_slot, 1u);
  EXPECT_EQ(of_server.my_slot, 1u);
  EXPECT_EQ(of_server.peer_slot, 2u);
  EXPECT_EQ(of_client.my_slot, 2u);
  EXPECT_EQ(of_client.credentials.pid, ::getpid());
  EXPECT_EQ(of_server.credentials.uid, ::geteuid());
  EXPECT_EQ(header_of(of_client).node, server.node.value);
  EXPECT_EQ(header_of(of_server).node, client.node.value);
  help_wanted(of_client).store(5);
  EXPECT_EQ(server.nic->image().signals->help_wanted.load(), 5u) << "the memory is the same";
  help_wanted(of_server).store(6);
  EXPECT_EQ(client.nic->image().signals->help_wanted.load(), 6u);
}

TEST_F(Handshake, BringsTheDoorbellOfTheOtherEnd) {
  ShmPeer of_client = must(begin());
  const ShmPeer of_server = must(answered());
  std::uint32_t endpoint = 0;
  ASSERT_OK(finish_dial(of_client, &endpoint));
  signal_eventfd(of_client.doorbell.get());
  std::uint64_t rung = 0;
  EXPECT_EQ(::read(server.doorbell.get(), &rung, sizeof rung), 8);
  signal_eventfd(of_server.doorbell.get());
  EXPECT_EQ(::read(client.doorbell.get(), &rung, sizeof rung), 8);
}

TEST_F(Handshake, OfAClientThatDoesNotWaitSaysThatThereIsNoAnswerYet) {
  ShmPeer of_client = must(begin());
  std::uint32_t endpoint = 0;
  EXPECT_ERR(finish_dial(of_client, &endpoint), EAGAIN);
  const ShmPeer of_server = must(answered());
  EXPECT_OK(finish_dial(of_client, &endpoint));
}

TEST_F(Handshake, OfAServerSaysThatTheHelloHasNotCome) {
  const Fd silent = must(connect_abstract(name, 0));
  EXPECT_ERR(answered(), EAGAIN);
}

TEST_F(Handshake, DoesNotBeginWhereNobodyListensOrAnotherUserDoes) {
  EXPECT_ERR(begin(::geteuid() + 1), EACCES);
  (void)accepted();
  listener.reset();
  EXPECT_ERR(begin(), ECONNREFUSED);
}

TEST_F(Handshake, DoesNotBeginWherePolicyForbidsTheUser) {
  client.allows = false;
  EXPECT_ERR(begin(), EACCES);
}

TEST_F(Handshake, IsRefusedInWordsWherePolicyForbidsTheUser) {
  ShmPeer of_client = must(begin());
  server.allows = false;
  EXPECT_ERR(answered(), EACCES);
  std::uint32_t endpoint = 0;
  const Status refused = finish_dial(of_client, &endpoint);
  EXPECT_ERR(refused, EACCES);
  EXPECT_NE(refused.error().message().find("allow_uids"), std::string::npos);
}

TEST_F(Handshake, OfAClientKnowsWhyItWasRefused) {
  for (const auto& [said, heard] : {std::pair{EPROTONOSUPPORT, EPROTONOSUPPORT},
                                    {EMFILE, EMFILE},
                                    {EBUSY, EBUSY},
                                    {-5, EPROTO},
                                    {0, EPROTO}}) {
    ShmPeer of_client = must(begin());
    const Fd socket = accepted();
    refuse(socket.get(), server.node, said);
    std::uint32_t endpoint = 0;
    EXPECT_ERR(finish_dial(of_client, &endpoint), heard);
  }
}

TEST_F(Handshake, EndsWithAPeerThatHangsUp) {
  ShmPeer of_client = must(begin());
  (void)accepted();
  std::uint32_t endpoint = 0;
  const Status ended = finish_dial(of_client, &endpoint);
  ASSERT_FALSE(ended.ok());
  EXPECT_TRUE(ended.error().err == ECONNREFUSED || ended.error().err == ECONNRESET);
  ShmPeer gone = must(begin());
  gone.socket.reset();
  Fd socket = accepted();
  ControlMessage hello;
  ASSERT_OK(receive_datagram(socket.get(), std::as_writable_bytes(std::span(&hello, 1))));
  EXPECT_ERR(answered(std::move(socket)), ECONNRESET);
}

TEST_F(Handshake, OfAServerTellsAClientOfAnotherVersionSo) {
  const Fd socket = must(connect_abstract(name, 0));
  ControlMessage hello;
  hello.type = ControlType::kHello;
  hello.version = shm::kLayoutVersion + 1;
  ASSERT_OK(send_datagram(socket.get(), std::as_bytes(std::span(&hello, 1)), {}));
  EXPECT_ERR(answered(), EPROTONOSUPPORT);
  ControlMessage said;
  ASSERT_OK(receive_datagram(socket.get(), std::as_writable_bytes(std::span(&said, 1))));
  EXPECT_EQ(said.type, ControlType::kRefuse);
  EXPECT_EQ(said.err, EPROTONOSUPPORT);
}

TEST_F(Handshake, OfAClientTakesNoAnswerWithAnImpossibleSlot) {
  ShmPeer of_client = must(begin());
  const Fd socket = accepted();
  ControlMessage accept;
  accept.type = ControlType::kAccept;
  accept.slot = shm::kMaxPeers;
  const int fds[] = {server.nic->tables_memfd(), server.nic->signals_memfd(),
                     server.doorbell.get()};
  ASSERT_OK(send_datagram(socket.get(), std::as_bytes(std::span(&accept, 1)), fds));
  std::uint32_t endpoint = 0;
  EXPECT_ERR(finish_dial(of_client, &endpoint), EPROTO);
}

TEST_F(Handshake, OfAClientThatWaitsEndsInTimeAndGivesItsSlotBack) {
  std::uint32_t endpoint = 0;
  const auto dial_for_a_moment = [&] {
    return dial(name, ::geteuid(), client.node, client.doorbell.get(), client.lane(),
                monotonic_ns() + 2'000'000, &endpoint);
  };
  const std::uint32_t free = must(client.nic->add_peer_slot());
  client.nic->remove_peer_slot(free);
  EXPECT_ERR(dial_for_a_moment(), ETIMEDOUT);
  const std::uint32_t again = must(client.nic->add_peer_slot());
  EXPECT_EQ(again, free);
}

TEST_F(Handshake, OfAServerGivesTheSlotBackWhenItsAnswerCannotLeave) {
  const std::uint32_t free = must(server.nic->add_peer_slot());
  server.nic->remove_peer_slot(free);
  (void)must(begin());  // and gone
  EXPECT_FALSE(answered().ok());
  const std::uint32_t again = must(server.nic->add_peer_slot());
  EXPECT_EQ(again, free);
}

}  // namespace
}  // namespace clan::link
