// The programs of `clan bench orb`, of stock omniORB; options and LD_PRELOAD choose the transport.
//
//   server [ORB OPTIONS]                      prints its reference
//   client REF OPERATION BYTES MS SERVER      a line of JSON; OPERATION: null, put, get; with the
//                                             CPU time of its own and of the process SERVER
//   idle REF CONNECTIONS                      opens them, prints "ready", keeps them until its
//                                             input ends
//   machine CORE CORE                         us: a cache line there and back, a wake-up
#include "load.hh"

#include <omniORB4/omniInterceptors.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "support/cpu_time.h"
#include "support/load.h"

namespace {

using Clock = std::chrono::steady_clock;

using namespace clan::bench;

class Servant : public POA_Load {
 public:
  void null_call() override {}
  void put(const Load::Bytes&) override {}
  Load::Bytes* get(CORBA::ULong size) override {
    auto* out = new Load::Bytes;
    out->length(size);
    return out;
  }
  void sleep_until(CORBA::ULongLong time) override {
    std::this_thread::sleep_until(Clock::time_point(std::chrono::milliseconds(time)));
  }
};

int serve(int argc, char** argv) {
  CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
  auto* servant = new Servant;
  PortableServer::ObjectId_var id = poa->activate_object(servant);
  Load_var self = servant->_this();
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
  CORBA::String_var text = orb->object_to_string(self);
  std::cout << text.in() << std::endl;
  orb->run();
  return 0;
}

// --- clients -------------------------------------------------------------------------------------

std::string path;
CORBA::Boolean note_path(omni::omniInterceptors::clientOpenConnection_T::info_T& info) {
  path = info.peeraddress();
  return 1;
}

Load_ptr connect(int argc, char** argv, CORBA::ORB_var& orb) {
  orb = CORBA::ORB_init(argc, argv);
  omniORB::getInterceptors()->clientOpenConnection.add(note_path);
  CORBA::Object_var object = orb->string_to_object(argv[2]);
  return Load::_unchecked_narrow(object);
}

int client(int argc, char** argv) {
  CORBA::ORB_var orb;
  Load_var load = connect(argc, argv, orb);
  const std::string operation = argv[3];
  const auto size = static_cast<CORBA::ULong>(std::strtoul(argv[4], nullptr, 10));
  const double ms = std::atof(argv[5]);
  const pid_t server = std::atoi(argv[6]);
  Load::Bytes data;
  data.length(size);
  const auto call = [&] {
    if (operation == "put") {
      load->put(data);
    } else if (operation == "get") {
      Load::Bytes_var got = load->get(size);
    } else {
      load->null_call();
    }
  };
  for (int i = 0; i < 200; ++i) call();
  std::vector<float> took;
  took.reserve(2'000'000);
  const double own = cpu_ns(), its = cpu_ns_of(server), start = now_us();
  double before = start;
  while (before - start < ms * 1000) {
    call();
    const double now = now_us();
    if (took.size() < took.capacity()) took.push_back(static_cast<float>(now - before));
    before = now;
  }
  const double seconds = (before - start) / 1e6;
  const double own_cpu = (cpu_ns() - own) / 1e9 / seconds;
  const double server_cpu = (cpu_ns_of(server) - its) / 1e9 / seconds;
  std::sort(took.begin(), took.end());
  const auto at = [&](double q) {
    return took[static_cast<std::size_t>(q * static_cast<double>(took.size() - 1))];
  };
  std::printf(
      "{\"path\": \"%s\", \"calls_per_s\": %.1f, \"p50\": %.3f, \"p99\": %.3f, "
      "\"processors\": %.4f, \"server_processors\": %.4f}\n",
      path.c_str(), static_cast<double>(took.size()) / seconds, at(0.5), at(0.99), own_cpu,
      server_cpu);
  return 0;
}

int idle(int argc, char** argv) {
  CORBA::ORB_var orb;
  Load_var load = connect(argc, argv, orb);
  const int connections = std::atoi(argv[3]);
  const auto until = std::chrono::duration_cast<std::chrono::milliseconds>(
      (Clock::now() + std::chrono::milliseconds(1000 + 2 * connections)).time_since_epoch());
  std::vector<std::thread> threads;
  for (int i = 0; i < connections; ++i) {
    // All at the same time, so that each needs a connection; one after the other, as giop:unix
    // listens for 5.
    threads.emplace_back([&] {
      for (;;) {
        try {
          return load->sleep_until(static_cast<CORBA::ULongLong>(until.count()));
        } catch (const CORBA::TRANSIENT&) {  // more than it listens for
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (auto& thread : threads) thread.join();
  stay_ready();
  return 0;
}

// --- the machine ---------------------------------------------------------------------------------

int machine(int a, int b) {
  constexpr int kTrips = 200'000, kWakes = 3000;
  auto* line = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int there = ::eventfd(0, 0), back = ::eventfd(0, 0);
  std::uint64_t word = 1;
  if (start_child() == 0) {
    pin(b);
    for (int i = 0; i < kTrips; ++i) {
      while (line->load() != 2 * i + 1) {
      }
      line->store(2 * i + 2);
    }
    for (int i = 0; i < kWakes; ++i) {
      if (::read(there, &word, sizeof word) < 0 || ::write(back, &word, sizeof word) < 0) break;
    }
    ::_exit(0);
  }
  pin(a);
  double start = now_us();
  for (int i = 0; i < kTrips; ++i) {
    line->store(2 * i + 1);
    while (line->load() != 2 * i + 2) {
    }
  }
  const double trip = (now_us() - start) / kTrips;
  start = now_us();
  for (int i = 0; i < kWakes; ++i) {
    if (::write(there, &word, sizeof word) < 0 || ::read(back, &word, sizeof word) < 0) break;
  }
  const double wake = (now_us() - start) / kWakes / 2;
  ::wait(nullptr);
  std::printf("{\"cache_line\": %.3f, \"wake_up\": %.2f}\n", trip, wake);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "server") return serve(argc, argv);
    if (what == "client" && argc >= 7) return client(argc, argv);
    if (what == "idle" && argc >= 4) return idle(argc, argv);
    if (what == "machine" && argc == 4) return machine(std::atoi(argv[2]), std::atoi(argv[3]));
  } catch (const CORBA::Exception& problem) {
    std::fprintf(stderr, "clan-orb-load: %s\n", problem._name());
    return 1;
  }
  std::fprintf(stderr, "clan-orb-load: for `clan bench orb`\n");
  return 2;
}
