// Servers of sessions: logins and file transfers.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "endpoint.h"
#include "programs.h"

namespace clan::tlbsim {
namespace {

// Login and file transfer servers, a process each, on one host with one NIC. Sessions overlap; each
// follows a script of keystrokes, echoes, screens of output, files up and files down.
class Sessions {
 public:
  Sessions(const Workload& workload, const Sink& sink)
      : workload_(workload), sink_(sink), random_(workload.seed) {}

  void run() {
    using Event = std::pair<std::uint64_t, std::size_t>;  // time in ms, server
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    for (std::size_t s = 0; s < workload_.processes; ++s) {
      servers_.emplace_back(static_cast<std::uint32_t>(s + 1), &sink_, s % 2 == 1);
      if (s < workload_.concurrent) events.emplace(random_.below(1000), s);
    }
    // A session that has said all takes leave when the first of those beside it does, and a new one
    // logs in: sessions begin in order and last about equally long.
    std::size_t next = workload_.concurrent;
    std::size_t oldest = 0;
    while (!events.empty()) {
      auto [now, who] = events.top();
      events.pop();
      Server& server = servers_[who];
      step(server);
      if (++server.steps < kSteps || who != oldest) {
        events.emplace(now + random_.between(50, 400), who);
        continue;
      }
      ++oldest;
      if (next < servers_.size()) events.emplace(now + random_.below(1000), next++);
    }
  }

 private:
  static constexpr std::size_t kSteps = 150;
  static constexpr std::uint64_t kFileBuffer = 16 * kPage;

  struct Server {
    Server(std::uint32_t pid, const Sink* sink, bool is_ftp)
        : endpoint(pid, sink), ftp(is_ftp), output(endpoint.place(kPage)) {
      if (ftp) file = endpoint.place(kFileBuffer);
    }
    Endpoint endpoint;
    bool ftp;
    std::uint64_t output;  // stdio's
    std::uint64_t file = 0;
    std::size_t steps = 0;
  };

  void step(Server& server) { server.ftp ? transfer(server) : type_line(server); }

  // Characters arrive and are echoed one by one; then the command's output.
  void type_line(Server& server) {
    for (std::uint64_t left = random_.between(2, 30); left != 0; --left) {
      server.endpoint.receive();
      server.endpoint.send_small(1);
    }
    std::uint64_t bytes = random_.between(40, 2000);
    server.endpoint.send(server.output, bytes);
  }

  // A command, a reply, and for some of them a file either way.
  void transfer(Server& server) {
    server.endpoint.receive();
    server.endpoint.send_small(random_.between(20, 60));
    std::uint64_t what = random_.below(4);
    std::uint64_t chunks = random_.between(1, 6);
    for (; what < 2 && chunks != 0; --chunks) {
      if (what == 0) {
        server.endpoint.send(server.file, random_.between(1, kFileBuffer));
      } else {
        server.endpoint.receive(random_.between(1, kFileBuffer / kPage));
      }
    }
  }

  const Workload& workload_;
  const Sink& sink_;
  Random random_;
  std::vector<Server> servers_;
};

}  // namespace

void socket_sessions(const Workload& workload, const Sink& sink) { Sessions(workload, sink).run(); }

}  // namespace clan::tlbsim
