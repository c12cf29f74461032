// One endpoint as a program of its own, for programs.py:
//
//     unet-end serve NAME          answers whatever comes, until the other end closes; then prints
//                                  how many messages it has had, and the status of the end
//     unet-end ask WHERE           messages of all sizes and direct access, each way; "right"
//     unet-end hold WHERE          a few messages, "held", and then waits to be killed
#include <sys/mman.h>

#include <cstdio>

#include "unet/ends.h"

namespace clan::unet::testing {
namespace {

constexpr std::uint64_t kDirectAt = 512 * 1024, kOutAt = 256 * 1024;

void fail(const char* what) {
  std::fprintf(stderr, "unet-end: %s\n", what);
  std::_Exit(1);
}

unet_endpoint_options options_of_ends() {
  unet_endpoint_options options = in_area(UNET_DIRECT_AREA);
  options.free_entries = 16;
  return options;
}

void finish_send(End& end) {
  for (;;) {
    if (unet_doorbell(end.e) != 0) fail("the doorbell");
    const int status = end.taken_status();
    if (status == 0) return;
    if (status != UNET_PENDING) fail(("a send has failed: " + std::to_string(status)).c_str());
    const int waited = unet_wait(end.e, 100);
    if (waited != 0 && waited != ETIMEDOUT) fail("waiting");
  }
}

int serve(const char* name) {
  NodeEnd node;
  unet_endpoint_options options = options_of_ends();
  options.service = name;
  End end(node.node, options);
  if (unet_accept(end.e, 1, kKey) != 0) fail("no tag");
  for (std::uint64_t i = 0; i < 16; ++i) (void)unet_free_push(end.e, i * 4096);
  std::puts("ready");
  std::fflush(stdout);
  for (int count = 0;; ++count) {
    const unet_receive d = end.receive();
    if (d.flags == UNET_CLOSED) {
      std::printf("%d messages, %d\n", count, d.status);
      return 0;
    }
    if (d.status != 0) fail("a buffer came back");
    std::string text;
    if (d.flags == UNET_DIRECT) {
      text.assign(reinterpret_cast<char*>(end.e->area) + d.u.buffer[0], d.bytes);
    } else {
      text = end.text_of(d);
      for (unsigned i = 0; i < d.buffers; ++i) (void)unet_free_push(end.e, d.u.buffer[i]);
    }
    std::memcpy(end.e->area + kOutAt, text.data(), text.size());
    (void)end.push_pieces(1, {{kOutAt, d.bytes, 0}});
    finish_send(end);
  }
}

std::string sample(std::size_t bytes) {
  std::string text(bytes, 0);
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 13 + bytes);
  return text;
}

void exchange(End& end, const std::string& text, bool direct) {
  std::memcpy(end.e->area + kOutAt, text.data(), text.size());
  unet_send* const d = unet_send_next(end.e);
  *d = {};
  d->tag = 2;
  d->pieces = 2;
  const auto half = static_cast<std::uint32_t>(text.size() / 2);
  d->u.piece[0] = {kOutAt, half, 0};
  d->u.piece[1] = {kOutAt + half, static_cast<std::uint32_t>(text.size()) - half, 0};
  if (direct) {
    d->flags = UNET_DIRECT;
    d->offset = kDirectAt;
  }
  unet_send_push(end.e);
  finish_send(end);
  const unet_receive got = end.receive();
  if (got.status != 0 || got.flags != 0 || end.text_of(got) != text) fail("other bytes came back");
  for (unsigned i = 0; i < got.buffers; ++i) (void)unet_free_push(end.e, got.u.buffer[i]);
}

int ask(const char* where, bool holds) {
  NodeEnd node;
  End end(node.node, options_of_ends());
  if (unet_connect_service(end.e, 2, where, 1, kKey, kSoon) != 0) fail("no connection");
  for (std::uint64_t i = 0; i < 16; ++i) (void)unet_free_push(end.e, i * 4096);
  for (const std::size_t bytes : {0u, 1u, 40u, 48u, 49u, 1498u, 4096u, 4097u, 24'000u})
    exchange(end, sample(bytes), false);
  for (const std::size_t bytes : {1u, 100u, 20'000u}) exchange(end, sample(bytes), true);
  std::puts(holds ? "held" : "right");
  std::fflush(stdout);
  while (holds) ::pause();
  return 0;
}

}  // namespace
}  // namespace clan::unet::testing

int main(int argc, char** argv) {
  using namespace clan::unet::testing;
  const std::string what = argc == 3 ? argv[1] : "";
  if (what == "serve") return serve(argv[2]);
  if (what == "ask" || what == "hold") return ask(argv[2], what == "hold");
  return 2;
}
