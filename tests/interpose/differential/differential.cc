// interpose-differential: a random sequence of socket calls, the same for the same seed, and what
// they say.
//
//     interpose-differential SEED STEPS [--disable-server] [--disable-client]
//     interpose-differential SEED STEPS --sets         threads that share epoll sets:
//                                                      differential_sets.cc
//
// differential.py runs it with and without the interposer and compares the transcripts. Exit code:
// 0, 1 wrong data or an actor that died, 3 a call that hangs.
//
//      director  --commands-->  server   server's understudy      (differential_actor.cc)
//                --commands-->  client   client's understudy
//
// A run consists of episodes: connect, some warm-up traffic, random steps, one of many ends. The
// director keeps count of the bytes under way, so it knows what each call must wait for before it
// may be made.
//
// The rules that make a transcript independent of timing and of buffer sizes:
//   - a read knows how many bytes must have arrived first (FIONREAD), or takes part in a transfer
//     of which only totals are printed;
//   - what one side sends while the other does not read stays below kUnreadMost, in few calls;
//   - "nothing is ready" is asked only when nothing is under way;
//   - an end is read only after it has arrived.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "differential_actor.h"
#include "differential_dice.h"
#include "differential_sets.h"

namespace clan::interpose_test {

namespace {

constexpr int kHangMs = 25'000;
constexpr std::int64_t kUnreadMost = 24 << 10;
constexpr int kUnreadCalls = 24;

/// A started process and the forked children that go on in its place.
struct Performer {
  int control = -1;
  std::vector<pid_t> generations;    // the last one answers
  std::vector<bool> has_connection;  // each of them
};

/// One end of the connection: the performer that has it, the other that may get it.
struct Side {
  const char* name = "";
  bool disabled = false;
  Performer performers[2];
  int active = 0;
  bool nonblocking = false;
  bool has_spare = false;
  std::int64_t sent = 0;  // the stream, as the director counts it
  std::int64_t read = 0;
  int unread_calls = 0;  // sends since all had been read
  Performer& performer() { return performers[active]; }
  bool nested() { return performer().generations.size() > 1; }
  bool parent_can_go_on() { return nested() && performer().has_connection.rbegin()[1]; }
};

class Director {
 public:
  Director(std::uint64_t seed, bool disable_server, bool disable_client)
      : seed_(seed), dice_(seed) {
    sides_[0].name = "server";
    sides_[1].name = "client";
    sides_[0].disabled = disable_server;
    sides_[1].disabled = disable_client;
    for (Side& side : sides_) start(side);
  }
  void run(int steps);

 private:
  // talking to actors
  void start(Side& side);
  void restart(Side& side);
  void tell(Side& side, const Command& command);
  Reply hear(Side& side, const char* prefix = "");
  Reply ask(Side& side, Command command);
  Reply ask(Side& side, Op op, int how = 0, std::int64_t a = 0, std::int64_t b = 0);
  [[noreturn]] void give_up(const Side& side, const char* why, int code);
  Command command(Side& side, Op op, int how = 0, std::int64_t a = 0, std::int64_t b = 0);

  // the model
  Side& other(Side& side) { return &side == &sides_[0] ? sides_[1] : sides_[0]; }
  std::int64_t unread(Side& side) { return other(side).sent - side.read; }

  // parts of an episode
  void connect();
  void warm_up();
  void step();
  void end();
  void end_of_half_close(Side& side);
  void end_by_kill(Side& side);
  void leave(Side& side);

  // steps
  void send(Side& side);
  void receive(Side& side);
  void read_everything(Side& side);
  void transfer(Side& side);
  void duplex();
  void blocked_wait(Side& side);
  void wait_for_nothing(Side& side);
  void look(Side& side);
  void armed_epoll(Side& side);
  void set_blocking(Side& side, bool blocking);
  void restarted(Side& side);
  void duplicate(Side& side);
  void fork(Side& side);
  void exec(Side& side);
  void pass(Side& side);
  void line(Side& side);
  void fill(Side& side);
  void more(Side& side);
  void sigio(Side& side);
  void urgent(Side& side);
  void names();
  void drop_spare(Side& side);
  void prompt(Side& side, std::int64_t bytes);
  void fill_transfer(Command* it, int direction, std::int64_t bytes);

  std::uint64_t seed_;
  Dice dice_;
  Side sides_[2];
  int episode_ = 0;
  int step_ = 0;
};

// --- talking to actors
// ------------------------------------------------------------------------------

void Director::start(Side& side) {
  int wings[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wings) != 0) std::abort();
  for (int i = 0; i < 2; ++i) {
    int control[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (side.disabled) ::setenv("CLAN_DISABLE", "1", 1);
      ::fcntl(control[1], F_SETFD, 0);
      ::fcntl(wings[i], F_SETFD, 0);
      const std::string words[2] = {std::to_string(control[1]), std::to_string(wings[i])};
      ::execl("/proc/self/exe", "interpose-differential", "--actor", words[0].c_str(),
              words[1].c_str(), "-1", "-1", nullptr);
      ::_exit(1);
    }
    ::close(control[1]);
    Performer& performer = side.performers[i];
    performer.control = control[0];
    performer.generations = {pid};
    performer.has_connection = {false};
  }
  ::close(wings[0]);
  ::close(wings[1]);
  for (side.active = 1; side.active >= 0; --side.active) {
    hear(side);
  }
  side.active = 0;
}

/// After a kill: both performers anew.
void Director::restart(Side& side) {
  for (Performer& performer : side.performers) {
    ::close(performer.control);  // the understudy ends by itself
    while (::waitpid(performer.generations.front(), nullptr, 0) < 0 && errno == EINTR) continue;
  }
  start(side);
}

void Director::give_up(const Side& side, const char* why, int code) {
  std::printf("%s: %s\n", side.name, why);
  std::fflush(stdout);
  ::_exit(code);  // the actors die with us
}

void Director::tell(Side& side, const Command& it) {
  if (::send(side.performer().control, &it, sizeof it, MSG_NOSIGNAL) != sizeof it)
    give_up(side, "is dead", 1);
}

Reply Director::hear(Side& side, const char* prefix) {
  pollfd one = {side.performer().control, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&one, 1, kHangMs);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) give_up(side, "HANGS", 3);
  Reply reply;
  if (::recv(side.performer().control, &reply, sizeof reply, 0) != sizeof reply)
    give_up(side, "DIED", 1);
  std::printf("%d.%d %s%s%s %s\n", episode_, step_, prefix, side.name, side.active == 0 ? "" : "'",
              reply.text);
  std::fflush(stdout);
  if (std::strstr(reply.text, "WRONG") != nullptr) give_up(side, "data are wrong", 1);
  return reply;
}

Command Director::command(Side& side, Op op, int how, std::int64_t a, std::int64_t b) {
  Command it;
  it.op = op;
  it.how = how;
  it.a = a;
  it.b = b;
  const std::uint64_t key = seed_ << 20 ^ static_cast<std::uint64_t>(episode_) << 1;
  const std::uint64_t mine = &side == &sides_[0] ? 0 : 1;
  it.key_out = (key | mine) << 20;
  it.key_in = (key | (1 - mine)) << 20;
  it.offset[0] = side.sent;
  it.offset[1] = side.read;
  return it;
}

Reply Director::ask(Side& side, Command it) {
  tell(side, it);
  return hear(side);
}

Reply Director::ask(Side& side, Op op, int how, std::int64_t a, std::int64_t b) {
  return ask(side, command(side, op, how, a, b));
}

// --- sending and receiving
// --------------------------------------------------------------------------

void Director::send(Side& side) {
  const std::int64_t room = kUnreadMost - unread(other(side));
  if (room < 1 || other(side).unread_calls >= kUnreadCalls) return read_everything(other(side));
  Command it = command(side, Op::kSend, dice_.below(kSendMethods));
  it.bytes[0] = dice_.size(room);
  const int flags[] = {0, 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_DONTWAIT | MSG_NOSIGNAL};
  it.a = flags[dice_.below(5)];
  if (dice_.one_in(12)) it.b = 1;  // corked
  side.sent += std::max<std::int64_t>(0, ask(side, it).result);
  other(side).unread_calls += 3;
}

/// MSG_MORE and what follows it; nothing is asked in between.
void Director::more(Side& side) {
  if (unread(other(side)) > kUnreadMost / 2) return read_everything(other(side));
  for (int i = 0; i < 3; ++i) {
    Command it = command(side, Op::kSend, dice_.one_in(2) ? 0 : 3, i < 2 ? MSG_MORE : 0);
    it.bytes[0] = dice_.size(3000);
    side.sent += std::max<std::int64_t>(0, ask(side, it).result);
  }
  other(side).unread_calls += 9;
}

void Director::receive(Side& side) {
  const std::int64_t there = unread(side);
  const int how = dice_.below(kReceiveMethods);
  Command it = command(side, Op::kReceive, how, 0, there);
  const int flags[] = {0,
                       MSG_PEEK,
                       MSG_WAITALL,
                       MSG_DONTWAIT,
                       MSG_PEEK | MSG_DONTWAIT,
                       MSG_TRUNC,
                       MSG_WAITALL | MSG_PEEK};
  it.a = flags[dice_.below(7)];
  const bool takes = how == 0 || (how >= 3 && how <= 5);
  if (there == 0) {
    // Nothing to read: only what does not wait.
    if (!side.nonblocking && !takes) return wait_for_nothing(side);
    if (!side.nonblocking) it.a |= MSG_DONTWAIT;
  }
  it.bytes[1] = dice_.size(there > 0 && dice_.one_in(2) ? there : 40'000);
  const bool all = takes && (it.a & MSG_WAITALL) != 0;
  // Several calls in one, each of which could wait for more than there is.
  if (there > 0 && (all || how == 5 || how == 7)) it.bytes[1] = std::min(it.bytes[1], there);
  side.read += std::max<std::int64_t>(0, ask(side, it).result);
  if (unread(side) == 0) side.unread_calls = 0;
}

void Director::read_everything(Side& side) {
  if (unread(side) == 0) return;
  Command it = command(side, Op::kTransfer);
  fill_transfer(&it, 1, unread(side));
  ask(side, it);
  side.read = other(side).sent;
  side.unread_calls = 0;
}

void Director::fill_transfer(Command* it, int direction, std::int64_t bytes) {
  it->bytes[direction] = bytes;
  it->hows[direction] = dice_.below(direction == 0 ? kTransferOut : kTransferIn);
  const std::int64_t least = bytes / 500 + 1;  // not too many calls
  it->chunk[direction] = static_cast<std::int32_t>(std::max(least, dice_.size(200'000)));
}

/// One side sends while the other receives.
void Director::transfer(Side& side) {
  Side& reader = other(side);
  const std::int64_t bytes = dice_.one_in(8) ? dice_.size(3 << 20) : dice_.size(300 << 10);
  Command out = command(side, Op::kTransfer), in = command(reader, Op::kTransfer);
  fill_transfer(&out, 0, bytes);
  fill_transfer(&in, 1, bytes + unread(reader));
  const bool reader_first = dice_.one_in(2);
  tell(reader_first ? reader : side, reader_first ? in : out);
  if (dice_.one_in(4)) ::usleep(static_cast<useconds_t>(dice_.below(3000)));
  tell(reader_first ? side : reader, reader_first ? out : in);
  hear(side);
  hear(reader);
  side.sent += bytes;
  reader.read = side.sent;
  reader.unread_calls = 0;
}

/// Both send and receive at once, each with two threads.
void Director::duplex() {
  std::int64_t bytes[2];
  Command it[2];
  for (std::int64_t& size : bytes) size = dice_.size(300 << 10);
  for (int i = 0; i < 2; ++i) {
    it[i] = command(sides_[i], Op::kTransfer);
    fill_transfer(&it[i], 0, bytes[i]);
    fill_transfer(&it[i], 1, bytes[1 - i] + unread(sides_[i]));
  }
  for (int i = 0; i < 2; ++i) tell(sides_[i], it[i]);
  for (int i = 0; i < 2; ++i) {
    hear(sides_[i]);
    sides_[i].sent += bytes[i];
  }
  for (Side& side : sides_) {
    side.read = other(side).sent;
    side.unread_calls = 0;
  }
}

void Director::warm_up() {
  for (Side& side : sides_) read_everything(side);
  const std::int64_t size = dice_.size(600);
  const int rounds = 10 + dice_.below(25);
  const int first = dice_.below(2);
  for (int i = 0; i < 2; ++i) {
    Command it = command(sides_[i], Op::kPing, 0, rounds, i == first ? 1 : 0);
    it.bytes[0] = size;
    it.hows[1] = dice_.below(kTransferIn);
    tell(sides_[i], it);
  }
  for (Side& side : sides_) {
    hear(side);
    side.sent += size * rounds;
    side.read += size * rounds;
  }
}

/// A small send that others wait for.
void Director::prompt(Side& side, std::int64_t bytes) {
  Command it = command(side, Op::kSend, dice_.below(4));
  it.bytes[0] = bytes;
  side.sent += std::max<std::int64_t>(0, ask(side, it).result);
  other(side).unread_calls += 1;
}

// --- readiness
// ------------------------------------------------------------------------------------

/// Somebody sleeps until something is sent.
void Director::blocked_wait(Side& side) {
  read_everything(side);
  tell(side, command(side, Op::kWait, dice_.below(kWaits), kWaitMs, POLLIN));
  ::usleep(static_cast<useconds_t>(dice_.below(2000)));
  prompt(other(side), dice_.size(3000));
  hear(side);
}

void Director::wait_for_nothing(Side& side) {
  read_everything(side);
  ask(side, Op::kWait, dice_.below(kWaits), dice_.one_in(2) ? 0 : 8, POLLIN);
}

/// Bytes are there (or it is about room): what do the calls say?
void Director::look(Side& side) {
  if (dice_.one_in(3)) {
    ask(side, Op::kWait, dice_.below(kWaits), kWaitMs, POLLOUT);
    return;
  }
  if (unread(side) == 0) prompt(other(side), dice_.size(2000));
  switch (dice_.below(3)) {
    case 0: ask(side, Op::kInput, 0, 0, unread(side)); break;
    case 1: ask(side, Op::kWait, dice_.below(kWaits), kWaitMs, POLLIN); break;
    default: ask(side, Op::kEpollStory, dice_.below(4), 0, unread(side)); break;
  }
}

void Director::armed_epoll(Side& side) {
  read_everything(side);
  ask(side, Op::kEpollArm);
  prompt(other(side), dice_.size(900));
  const std::int64_t there = unread(side);
  ask(side, Op::kEpollCheck, 0, 0, there);
  side.read += there;
  side.unread_calls = 0;
}

// --- the rest of the steps
// --------------------------------------------------------------------------

void Director::set_blocking(Side& side, bool blocking) {
  if (side.nonblocking != blocking && !dice_.one_in(4)) return;
  ask(side, Op::kBlocking, (blocking ? 0 : 1) + 2 * dice_.below(2));
  side.nonblocking = !blocking;
}

void Director::restarted(Side& side) {
  read_everything(side);
  Command it = command(side, Op::kRestarted);
  it.bytes[1] = dice_.size(2000);
  tell(side, it);
  ::usleep(static_cast<useconds_t>(dice_.below(9000)));
  prompt(other(side), it.bytes[1]);
  hear(side);
  side.read += it.bytes[1];
}

void Director::drop_spare(Side& side) {
  if (side.has_spare) ask(side, Op::kCloseSpare);
  side.has_spare = false;
}

void Director::duplicate(Side& side) {
  drop_spare(side);
  const int how = dice_.below(kDuplicates);
  const bool both = how != 5 && dice_.one_in(3);
  ask(side, Op::kDuplicate, how, both ? 1 : 0);
  side.has_spare = both;
  if (both && dice_.one_in(2)) ask(side, Op::kSwap);
}

/// A child goes on: forked, or started with the descriptor inherited.
void Director::fork(Side& side) {
  Performer& performer = side.performer();
  if (performer.generations.size() >= 3) return leave(side);
  drop_spare(side);
  // A parent closes only when it is the last generation that has the connection, so that close()
  // ends it.
  const bool last =
      std::count(performer.has_connection.begin(), performer.has_connection.end(), true) <= 1;
  int kind = dice_.below(4);
  if (kind == 1 && !last) kind = 0;
  pid_t child = -1;
  if (kind < 2) {
    child = static_cast<pid_t>(ask(side, Op::kFork, kind).result);
    if (kind == 1) performer.has_connection.back() = false;
  } else {
    child = static_cast<pid_t>(ask(side, Op::kSpawn, kind - 2, dice_.one_in(3) ? 1 : 0).result);
  }
  performer.generations.push_back(child);
  performer.has_connection.push_back(true);
}

/// The child ends, its parent goes on - if it still has the connection.
void Director::leave(Side& side) {
  Performer& performer = side.performer();
  if (!side.parent_can_go_on()) return;
  drop_spare(side);
  ask(side, Op::kLeave, dice_.below(2));
  performer.generations.pop_back();
  performer.has_connection.pop_back();
}

void Director::exec(Side& side) {
  drop_spare(side);
  ask(side, Op::kExec, 0, dice_.one_in(4) ? 1 : 0);
}

void Director::pass(Side& side) {
  if (side.nested()) return leave(side);
  drop_spare(side);
  const int later = dice_.below(2);
  ask(side, Op::kPass, later);
  Performer& from = side.performer();
  side.active = 1 - side.active;
  ask(side, Op::kTake);
  side.performer().has_connection.back() = true;
  if (later != 0) {
    side.active = 1 - side.active;
    ask(side, Op::kClose, dice_.one_in(2) ? 0 : 3);
    side.active = 1 - side.active;
  }
  from.has_connection.back() = false;
}

void Director::line(Side& side) {
  Side& reader = other(side);
  read_everything(reader);
  Command out = command(side, Op::kLineOut, dice_.below(2));
  out.bytes[0] = 20 + dice_.below(900);
  const std::int64_t bytes = ask(side, out).result;
  ask(reader, Op::kLineIn, 0, 0, bytes);
  side.sent += bytes;
  reader.read += bytes;
}

/// The only step in which how many bytes go depends on buffers: they are a stream of their own.
void Director::fill(Side& side) {
  Side& reader = other(side);
  read_everything(reader);
  const std::int64_t bytes = ask(side, Op::kFill, side.nonblocking ? 0 : dice_.below(2)).result;
  Command it = command(reader, Op::kDrain, 0, bytes);
  it.hows[1] = dice_.below(kTransferIn);
  ask(reader, it);
  ask(side, Op::kWait, dice_.below(kWaits), kWaitMs, POLLOUT);
}

void Director::sigio(Side& side) {
  read_everything(side);
  ask(side, Op::kSigioArm);
  prompt(other(side), dice_.size(100));
  ask(side, Op::kSigioCheck);
}

void Director::urgent(Side& side) {
  Side& reader = other(side);
  read_everything(reader);
  ask(side, Op::kUrgentOut);
  ask(reader, Op::kUrgentIn);
  side.sent += 6;
  reader.read += 6;
}

void Director::names() {
  const auto server = static_cast<std::uint64_t>(ask(sides_[0], Op::kNames).result);
  const auto client = static_cast<std::uint64_t>(ask(sides_[1], Op::kNames).result);
  const bool fits = (server >> 16) == (client & 0xffff) && (client >> 16) == (server & 0xffff);
  std::printf("names %s\n", fits ? "match" : "DO NOT MATCH");
}

void Director::step() {
  Side& side = sides_[dice_.below(2)];
  const int kind = dice_.below(100);
  if (kind < 18) return send(side);
  if (kind < 38) return receive(side);
  if (kind < 45) return transfer(side);
  if (kind < 48) return duplex();
  if (kind < 51) return warm_up();
  if (kind < 55) return blocked_wait(side);
  if (kind < 58) return wait_for_nothing(side);
  if (kind < 64) return look(side);
  if (kind < 66) return armed_epoll(side);
  if (kind < 70) return set_blocking(side, dice_.one_in(2));
  if (kind < 74) return duplicate(side);
  if (kind < 77) return fork(side);
  if (kind < 79) return leave(side);
  if (kind < 81) return exec(side);
  if (kind < 83) return pass(side);
  if (kind < 85) return line(side);
  if (kind < 87) return more(side);
  if (kind == 87) return names();
  if (kind == 88) return static_cast<void>(ask(side, Op::kOptions));
  if (kind == 89 && dice_.one_in(2)) return fill(side);
  if (kind == 90 && dice_.one_in(3)) return sigio(side);
  if (kind == 91 && dice_.one_in(3)) return urgent(side);
  if (kind == 92 && unread(other(side)) == 0) return static_cast<void>(ask(side, Op::kOutput));
  if (kind == 93) {
    const int mark = 1 + dice_.below(2000);
    return static_cast<void>(ask(side, Op::kLowWater, 0, mark, unread(side)));
  }
  if (kind == 94) {
    read_everything(side);
    return static_cast<void>(ask(side, Op::kOddCalls));
  }
  if (kind == 95) return static_cast<void>(ask(side, Op::kRefused, dice_.below(kFamilies)));
  // What waits for nothing wants a blocking socket.
  if (side.nonblocking) return set_blocking(side, true);
  read_everything(side);
  if (kind == 96) return static_cast<void>(ask(side, Op::kTimeout));
  if (kind == 97) return static_cast<void>(ask(side, Op::kInterrupt, dice_.below(4)));
  return restarted(side);
}

// --- an episode
// -------------------------------------------------------------------------------------

void Director::connect() {
  Side& server = sides_[0];
  Side& client = sides_[1];
  for (Side& side : sides_) {
    side.sent = side.read = side.unread_calls = 0;
    side.nonblocking = side.has_spare = false;
  }
  const int family = dice_.below(kFamilies);
  const std::int64_t port = ask(server, Op::kListen, family).result;
  if (dice_.one_in(4)) fork(server);  // accepts in a child, of a listener that its parent made
  const bool nonblocking = dice_.one_in(3);
  const std::int64_t b = nonblocking ? 1 : 0;
  ask(client, Op::kConnect, family, port, b);
  client.nonblocking = nonblocking;
  client.performer().has_connection.back() = true;
  if (dice_.one_in(4)) prompt(client, dice_.size(2000));  // before it is accepted
  ask(server, Op::kAccept, dice_.below(4));
  // Generations before the accept have no connection; the one that accepted has.
  for (std::size_t i = 0; i < server.performer().has_connection.size(); ++i) {
    server.performer().has_connection[i] = i + 1 == server.performer().has_connection.size();
  }
  names();
}

void Director::end_of_half_close(Side& side) {
  Side& peer = other(side);
  ask(side, Op::kShutdown, SHUT_WR);
  if (dice_.one_in(2))
    ask(side, Op::kSend, 0, MSG_NOSIGNAL);  // zero bytes, but not for nothing: EPIPE
  Command it = command(peer, Op::kReadToEnd, 0, 0, unread(peer));
  it.hows[1] = dice_.below(kTransferIn);
  ask(peer, it);
  peer.read = side.sent;
  // The other direction goes on.
  Command out = command(peer, Op::kTransfer), in = command(side, Op::kTransfer);
  const std::int64_t bytes = dice_.size(200'000);
  fill_transfer(&out, 0, bytes);
  fill_transfer(&in, 1, bytes + unread(side));
  tell(side, in);
  tell(peer, out);
  hear(peer);
  hear(side);
  peer.sent += bytes;
  side.read = peer.sent;
  ask(peer, Op::kClose, dice_.one_in(2) ? 0 : 1);
  ask(side, Op::kReadToEnd);
  ask(side, Op::kClose);
}

/// kill -9 of the sender while its peer reads: everything up to some byte, then the end.
void Director::end_by_kill(Side& side) {
  Side& peer = other(side);
  read_everything(side);  // unread bytes would make the end a reset
  const pid_t victim = side.performer().generations.back();
  if (dice_.one_in(2)) {
    tell(side, command(side, Op::kSendForever));
    tell(peer, command(peer, Op::kReadAll));
    ::usleep(static_cast<useconds_t>(500 + dice_.below(20'000)));
    ::kill(victim, SIGKILL);
    hear(peer);
  } else {
    tell(side, command(side, Op::kDie));
    ask(peer, Op::kReadToEnd, 0, 0, unread(peer));
  }
  ask(peer, Op::kClose);
  restart(side);
}

/// One of the ways a connection ends. `side` begins.
void Director::end() {
  Side& side = sides_[dice_.below(2)];
  Side& peer = other(side);
  for (Side& each : sides_) {
    drop_spare(each);
    while (each.parent_can_go_on()) leave(each);
  }
  const int kind = dice_.below(8);
  Command to_end = command(peer, Op::kReadToEnd);
  switch (kind) {
    case 0:  // everything read on both sides
    case 1:
      for (Side& each : sides_) read_everything(each);
      ask(side, Op::kClose, dice_.one_in(3) ? 3 : dice_.below(2));
      ask(peer, Op::kReadToEnd);
      if (kind == 1) ask(peer, Op::kWriteDead, dice_.below(2));
      ask(peer, Op::kClose);
      break;
    case 2: end_of_half_close(side); break;
    case 3:  // bytes that nobody will read: the peer gets its own, then a reset
      if (unread(side) == 0) prompt(peer, dice_.size(3000));
      if (unread(peer) == 0 && dice_.one_in(2)) prompt(side, dice_.size(3000));
      ask(side, Op::kInput, 0, 0, unread(side));
      ask(peer, Op::kInput, 0, 0, unread(peer));
      ask(side, Op::kClose);
      ask(peer, Op::kResetEnd, 0, 0, unread(peer));
      ask(peer, Op::kClose);
      break;
    case 4:  // linger 0
      ask(peer, Op::kInput, 0, 0, unread(peer));
      ask(side, Op::kOutput);
      ask(side, Op::kClose, 2);
      ask(peer, Op::kResetEnd, 0, 0, unread(peer));
      ask(peer, Op::kClose);
      break;
    case 5:  // the reader shuts, the writer goes on
      ask(side, Op::kInput, 0, 0, unread(side));
      ask(side, Op::kShutdown, SHUT_RD);
      ask(side, Op::kReadToEnd, 0, 0, unread(side));
      side.read = peer.sent;
      read_everything(peer);
      ask(side, Op::kClose);
      ask(peer, Op::kReadToEnd);
      ask(peer, Op::kClose);
      break;
    case 6:
      if (!side.nested()) {
        end_by_kill(side);
        break;
      }
      [[fallthrough]];
    default:  // both directions shut while the peer is asleep
      for (Side& each : sides_) read_everything(each);
      to_end = command(peer, Op::kReadAll);
      tell(peer, to_end);
      ::usleep(static_cast<useconds_t>(dice_.below(1500)));
      tell(side, command(side, Op::kShutdown, SHUT_RDWR));
      hear(side);
      hear(peer);
      ask(side, Op::kReadToEnd);
      ask(peer, Op::kClose);
      ask(side, Op::kClose);
      break;
  }
  for (Side& each : sides_) {
    Performer& performer = each.performer();
    while (each.nested()) {
      ask(each, Op::kLeave, dice_.below(2));
      performer.generations.pop_back();
      performer.has_connection.pop_back();
    }
    performer.has_connection.back() = false;
  }
}

void Director::run(int steps) {
  int left = steps;
  while (left > 0) {
    ++episode_;
    step_ = 0;
    connect();
    if (!dice_.one_in(8)) warm_up();
    const int length = std::min(left, 1 + dice_.below(dice_.one_in(3) ? 10 : 60));
    for (step_ = 1; step_ <= length; ++step_) step();
    left -= length;
    end();
  }
  for (Side& side : sides_) {
    for (Performer& performer : side.performers) {
      const Command quit;
      if (::send(performer.control, &quit, sizeof quit, MSG_NOSIGNAL) != sizeof quit)
        give_up(side, "is dead", 1);
      int status = -1;
      while (::waitpid(performer.generations.front(), &status, 0) < 0 && errno == EINTR) continue;
      if (status != 0) give_up(side, "ended badly", 1);
    }
  }
  std::printf("done\n");
}

}  // namespace

}  // namespace clan::interpose_test

int main(int argc, char** argv) {
  using namespace clan::interpose_test;
  if (argc == 6 && std::strcmp(argv[1], "--actor") == 0) {
    return run_actor(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
                     std::atoi(argv[5]));
  }
  bool disable[2] = {};
  for (; argc > 3; --argc) {
    if (std::strcmp(argv[argc - 1], "--disable-server") == 0) {
      disable[0] = true;
    } else if (std::strcmp(argv[argc - 1], "--disable-client") == 0) {
      disable[1] = true;
    } else {
      break;
    }
  }
  if (argc == 4 && std::strcmp(argv[3], "--sets") == 0) {
    return run_sets(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]));
  }
  if (argc != 3) {
    std::fprintf(
        stderr, "usage: interpose-differential SEED STEPS [--disable-server] [--disable-client]\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  if (const char* preload = std::getenv("LD_PRELOAD"); preload != nullptr) {
    ::setenv("DIFFERENTIAL_PRELOAD", preload, 1);
  }
  Director(std::strtoull(argv[1], nullptr, 10), disable[0], disable[1]).run(std::atoi(argv[2]));
  return 0;
}
