// What the provider asks of the kernel for itself is refused, one call at a time: memory, memfds,
// descriptors, sockets, eventfds. A call of the program's says so, or goes on without; nothing
// crashes, hangs or stays behind, and afterwards everything can be done.
//
// The program defines those calls, so the provider's come here; one is the provider's if it returns
// into the provider. A first round counts those that may fail, then there is a round for each of
// them in which it does.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "libfabric/node.h"

namespace clan::test {

/// A filter of calls stays: `test` is run in a child.
void in_a_process_of_its_own(void (*test)());

/// What a round could leave behind: descriptors, and mappings of memfds.
std::pair<int, int> left_open();

/// True if it went well. A call that fails says what libfabric's calls may say.
bool well(ssize_t rc);

/// In which call number `refuse` of the provider's is refused; 0: none.
struct Round {
  static void begin(long refuse);
  static void end();
  static const char* refused();  ///< the name of the call that has been, or null
  static long calls();           ///< that could have been
};

/// One of two that talk; closed in turn, what is made of others first.
struct End {
  template <typename T, typename Open>
  static bool make(Object<T>* object, Open&& open) {
    T* made = nullptr;
    if (!well(open(&made))) return false;
    object->reset(made);
    return true;
  }
  /// Completions and failures of operations, by their contexts.
  void work(std::map<void*, int>* done);

  char memory[64] = {};
  fi_addr_t peer = FI_ADDR_NOTAVAIL;
  Info info;
  Object<fid_fabric> fabric;
  Object<fid_eq> eq;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_av> av;
  Object<fid_mr> mr;
  Object<fid_pep> pep;
  Object<fid_ep> ep;
};

/// Each says something short and something long, and writes into the other's memory. False: an
/// operation has failed. A call that never ends, or never completes, is an error.
bool talk(End& a, End& b);

/// A Pair builds and talks: both are false if a call or an operation has failed. What cannot talk
/// after a refusal may be lost(), and that is reported.
template <typename Pair>
void round(long refuse, std::map<std::string, int>* refused) {
  const auto before = left_open();
  Round::begin(refuse);
  {
    Pair pair;
    const bool built = pair.build();
    const bool talked = built && pair.talk();
    const bool is_refused = Round::refused() != nullptr;
    Round::end();
    EXPECT_TRUE(is_refused || talked);
    if (is_refused) ++(*refused)[std::string(Round::refused()) + (talked ? "" : ", and was told")];
    if (built && !talked) {
      EXPECT_TRUE(eventually([&] { return pair.talk() || pair.is_lost(); }))
          << "it does not go on afterwards";
    }
    Pair another;
    EXPECT_TRUE(another.build() && another.talk());
  }
  EXPECT_TRUE(eventually([&] { return left_open() == before; }))
      << left_open().first - before.first << " descriptors and "
      << left_open().second - before.second << " mappings are left";
}

template <typename Pair>
void each_call_is_refused_once() {
  std::map<std::string, int> refused;
  round<Pair>(0, &refused);
  round<Pair>(0, &refused);  // what is made once for the process is there
  const long calls = Round::calls();
  ASSERT_GT(calls, 20);
  for (long n = 1; n <= calls && !testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE(n);
    round<Pair>(n, &refused);
    if (testing::Test::HasFailure() && Round::refused() != nullptr)
      std::printf("refused: %s\n", Round::refused());
  }
  for (const auto& [name, times] : refused) std::printf("%s: %d times\n", name.c_str(), times);
  EXPECT_GT(refused["mmap, and was told"], 0);
}

}  // namespace clan::test
