// One end of hosts.py: serves, or asks a service of another host, through streams, messages and
// RDMA.
//
//   udp-host-peer serve DIRECTORY_PORT [KEY_FILE]        until its input ends
//   udp-host-peer ask   DIRECTORY_PORT HOST [KEY_FILE]   0: every byte was right
//   udp-host-peer push  DIRECTORY_PORT HOST [KEY_FILE]   sends through a stream that echoes until
//                                                        its input ends
//       or the stream does; says "begun", then "right ERRNO BYTES" or "wrong": ERRNO 0 if the input
//       ended
//   udp-host-peer turns DIRECTORY_PORT HOST HOST         asks two by turns, forks meanwhile; says
//                                                        "begun", and when a
//       line has come, in which time the first was begun anew, does it again. 0: every byte was
//       right
//
// CLAN_NETWORK_PACKETS as for the faces.
#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/face/settings.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <clan/stream.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "support/pattern.h"
#include "support/streams.h"

namespace clan::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kStreamBytes = 6'000'000;  // many times what is under way at once
#else
constexpr std::uint64_t kStreamBytes = 20'000'000;
#endif
constexpr std::size_t kRdmaBytes = 3'000'000;
/// The time after which a step hangs: a build with a sanitizer, beside others on a busy machine,
/// takes tens of seconds for what takes milliseconds else.
constexpr std::int64_t kPatienceMs = 60'000;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s went wrong\n", what);
  std::exit(1);
}

Context make_context(const char* port, const char* key) {
  ContextOptions options;
  options.network.enabled = true;
  options.network.mode =
      key == nullptr ? NetworkOptions::Mode::kOff : NetworkOptions::Mode::kEncrypt;
  options.network.key_file = key == nullptr ? "" : key;
  if (const char* packets = std::getenv("CLAN_NETWORK_PACKETS"); packets != nullptr) {
    SettingFault fault;
    check(parse_name(packets, kNetworkPackets, &options.network.packets, &fault), packets);
  }
  options.network.directory_port = static_cast<std::uint16_t>(std::atoi(port));
  return must(Context::create(options));
}

void echo(Stream stream) {
  std::vector<std::byte> buffer(64 * 1024);
  for (auto n = stream.recv(buffer); n.ok() && *n > 0; n = stream.recv(buffer)) {
    if (!stream.send(std::span(buffer).first(*n))) break;
  }
}

// Echoes streams, answers each message, and lets a peer write and read its memory.
void serve(Context& context) {
  auto listener = must(Listener::create(context, "host-stream"));
  auto endpoint = must(MessageEndpoint::create(context, "host-message"));
  std::vector<std::byte> region(kRdmaBytes);
  auto aperture = must(Aperture::export_region(context, region, Rights::kReadWrite));
  std::thread([&] {
    for (;;) {
      auto stream = listener.accept();
      if (!stream) return;
      std::thread(echo, std::move(*stream)).detach();
    }
  }).detach();
  std::thread([&] {
    std::vector<std::byte> buffer(1 << 20);
    for (;;) {
      auto got = endpoint.recv(buffer);
      if (!got) continue;
      auto answer = std::as_bytes(std::span(&aperture.cookie(), 1));
      if (got->size > 0) answer = std::span<const std::byte>(buffer).first(got->size);
      (void)endpoint.send(got->from, answer);
    }
  }).detach();
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (::read(0, &byte, 1) > 0) {
  }
  std::fflush(nullptr);
  ::_exit(0);  // the threads never end
}

void ask_messages(Context& context, const std::string& host) {
  auto endpoint = must(MessageEndpoint::create(context));
  auto peer = must(endpoint.connect(host + "/host-message", kPatienceMs));
  std::vector<std::byte> buffer(1 << 20);
  for (std::size_t bytes : {1u, 64u, 1'400u, 9'000u, 300'000u}) {
    const auto sent = pattern(bytes, bytes);
    check(endpoint.send(peer, sent).ok(), "sending a message");
    auto got = endpoint.recv(buffer, kPatienceMs);
    check(got.ok() && got->size == bytes && std::equal(sent.begin(), sent.end(), buffer.begin()),
          "a message");
  }
  check(endpoint.send(peer, {}).ok(), "asking for a cookie");
  auto got = endpoint.recv(buffer, kPatienceMs);
  RdmaCookie cookie;
  check(got.ok() && got->size == sizeof cookie, "the cookie");
  std::memcpy(&cookie, buffer.data(), sizeof cookie);
  auto remote = must(RemoteAperture::import(context, cookie, kPatienceMs));
  auto queue = must(RdmaQueue::create(context));
  auto bytes = pattern(kRdmaBytes, 77);
  std::vector<std::byte> seen(kRdmaBytes);
  RdmaCompletion done[1];
  check(queue.write(remote, 0, bytes.data(), bytes.size()).ok(), "an RDMA write");
  check(queue.wait(done, kPatienceMs).ok() && done[0].status == 0, "an RDMA write");
  check(queue.read(remote, 0, seen.data(), seen.size()).ok(), "an RDMA read");
  check(queue.wait(done, kPatienceMs).ok() && done[0].status == 0, "an RDMA read");
  check(seen == bytes, "what RDMA wrote and read");
}

void ask(Context& context, const std::string& host) {
  auto stream = must(Stream::connect(context, host + "/host-stream", kPatienceMs));
  check(std::strcmp(stream.peer().path, "udp") == 0, "the path");
  std::thread sender([&] {
    check(send_pattern(stream, 5, 0, kStreamBytes, 64 * 1024, kPatienceMs) == kStreamBytes,
          "sending through a stream");
  });
  const Received r = receive_pattern(stream, 5, 0, kStreamBytes, 64 * 1024, kPatienceMs);
  sender.join();
  check(r.right && r.bytes == kStreamBytes, "a stream");
  ask_messages(context, host);
  std::puts("right");
}

// For wires that are cut meanwhile: how the stream ends, and whether every byte was right until
// then.
void push(Context& context, const std::string& host) {
  auto stream = must(Stream::connect(context, host + "/host-stream", kPatienceMs));
  std::atomic<std::uint64_t> sent{0};
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    constexpr std::uint64_t kPiece = 256 * 1024;
    for (std::uint64_t at = 0; !stop.load(); at += kPiece) {
      const std::uint64_t end = send_pattern(stream, 5, at, at + kPiece, 64 * 1024, kPatienceMs);
      sent.store(end);
      if (end != at + kPiece) return;
    }
    (void)stream.shutdown_send();
  });
  std::thread input([&] {
    char byte;
    while (::read(0, &byte, 1) > 0) {
    }
    stop.store(true);
  });
  input.detach();
  const Received first = receive_pattern(stream, 5, 0, 1 << 20, 64 * 1024, kPatienceMs);
  check(first.right && first.bytes == 1 << 20, "a stream");
  std::puts("begun");
  std::fflush(stdout);
  const Received rest =
      receive_pattern(stream, 5, first.bytes, ~std::uint64_t{0}, 64 * 1024, kPatienceMs);
  sender.join();
  const bool whole = !rest.end_of_stream || rest.bytes == sent.load();
  std::printf("%s %d %llu\n", rest.right && whole ? "right" : "wrong", rest.err,
              static_cast<unsigned long long>(rest.bytes));
  std::fflush(nullptr);
  ::_exit(0);  // `input` may not have ended
}

void ask_bytes(Stream& stream, int times) {
  for (int i = 0; i < times; ++i) {
    const auto sent = pattern(64, static_cast<std::uint64_t>(i));
    std::vector<std::byte> back(64);
    check(must(stream.send(sent)) == sent.size(), "sending");
    for (std::size_t got = 0; got < back.size();) {
      auto n = stream.recv(std::span(back).subspan(got), kPatienceMs);
      check(n.ok() && *n > 0, "an answer");
      got += *n;
    }
    check(back == sent, "what was answered");
  }
}

// Long enough turns that either is the busiest peer for a while, short ones after them.
void take_turns(Stream& first, Stream& second) {
  pid_t child = -1;
  for (int round = 0; round < 6; ++round) {
    ask_bytes(first, 600);
    ask_bytes(second, 600);
    if (round != 2) continue;
    const pid_t parent = ::getpid();
    child = ::fork();
    if (child == 0) {
      // It must not outlive a parent that fails: the reader of our output waits for its end.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) ::pause();
      ::_exit(1);
    }
  }
  for (int i = 0; i < 300; ++i) {
    ask_bytes(first, 1);
    ask_bytes(second, 1);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

void turns(Context& context, const std::string& first_host, const std::string& second_host) {
  auto first = must(Stream::connect(context, first_host + "/host-stream", kPatienceMs));
  auto second = must(Stream::connect(context, second_host + "/host-stream", kPatienceMs));
  check(std::strcmp(first.peer().path, "udp") == 0 && std::strcmp(second.peer().path, "udp") == 0,
        "a path");
  take_turns(first, second);
  std::puts("begun");
  std::fflush(stdout);
  char byte;
  check(::read(0, &byte, 1) == 1, "the line");
  check(first.recv({reinterpret_cast<std::byte*>(&byte), 1}, kPatienceMs).error().err == ECONNRESET,
        "the end of the first");
  auto anew = must(Stream::connect(context, first_host + "/host-stream", kPatienceMs));
  take_turns(anew, second);
}

}  // namespace
}  // namespace clan::test

int main(int argc, char** argv) {
  using namespace clan::test;
  const std::string role = argc > 2 ? argv[1] : "";
  if (role == "serve") {
    auto context = make_context(argv[2], argc > 3 ? argv[3] : nullptr);
    serve(context);
  } else if (role == "ask" && argc > 3) {
    auto context = make_context(argv[2], argc > 4 ? argv[4] : nullptr);
    ask(context, std::string("udp:") + argv[3]);
  } else if (role == "turns" && argc > 4) {
    auto context = make_context(argv[2], nullptr);
    turns(context, std::string("udp:") + argv[3], std::string("udp:") + argv[4]);
  } else if (role == "push" && argc > 3) {
    auto context = make_context(argv[2], argc > 4 ? argv[4] : nullptr);
    push(context, std::string("udp:") + argv[3]);
  } else {
    std::fprintf(stderr,
                 "usage: %s serve PORT [KEY] | ask PORT HOST [KEY] | push PORT HOST [KEY] | "
                 "turns PORT HOST HOST\n",
                 argv[0]);
    return 2;
  }
  return 0;
}
