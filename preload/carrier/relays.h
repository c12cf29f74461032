// Relays: the connections of this process by names of AF_CLAN between hosts, and the names that it
// answers other hosts for. It has one thread, which sleeps on the kernel's ends and on the streams'
// events at once.
//
// A name is a service of the link's directory, "af1.NAME", of the process that has called listen().
// When another host asks for it the process calls the name itself, as any program of this host may,
// and answers before the connection's own bytes (carrier/name_answer.h). What is answered is input
// to the one that asked.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "carrier/relay.h"
#include "far/carrier_table.h"

namespace clan::preload {

class Relays {
 public:
  /// Never deleted: its thread ends with the process.
  static Result<Relays*> start(Context& context);

  /// Other hosts are answered for that name: now, or as soon as another process of this host that
  /// is ends.
  void offer(const std::string& name, OpenName* open);
  /// From now on `fd` and the stream are one connection.
  void add(Stream&& stream, int fd);
  /// Connects to "udp:HOST/NAME". What the other end is to say first has been said.
  static Result<Stream> dial(Context& context, const std::string& name);

  /// The process ends: hands on what its program has sent, for at most so long.
  void finish(std::uint32_t ms);
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// In a child of fork(), with the lock: its copies would keep connections open.
  void close_copies();

 private:
  struct Offer {
    std::string name;
    OpenName* open = nullptr;
    std::optional<Listener> listener;
    std::uint64_t again_ns = 0;  ///< to be tried
  };
  Relays(Context& context, EventQueue&& queue, int epoll);
  Status run();
  void serve_all();
  void sleep();
  void take_new();
  void try_offers();
  void accept_all(Offer& offer);
  void enter(std::unique_ptr<Relay> relay);
  void serve(std::uint64_t tag);
  void leave(std::uint64_t tag);
  void finish_all();

  Context& context_;
  std::optional<EventQueue> queue_;
  const int epoll_;
  std::uint32_t called_ = 0;  ///< the event by which the thread is told of what is new
  std::atomic<bool> ends_{false};
  std::uint64_t until_ns_ = 0;
  // Of the thread.
  std::uint64_t last_tag_ = 0;
  std::unordered_map<std::uint64_t, Offer> offers_;
  std::unordered_set<std::uint64_t> again_;
  // Of the thread, and changed under the mutex: fork() looks at them.
  std::unordered_map<std::uint64_t, std::unique_ptr<Relay>> all_;
  std::mutex mutex_;  ///< of what follows
  std::vector<std::unique_ptr<Relay>> new_relays_;
  std::vector<Offer> new_offers_;
  bool ended_ = false;
  std::condition_variable ended_now_;
};

}  // namespace clan::preload
