// Messages of MPI between two ranks and among all: every way to send, to receive, to look first, to
// give up.
//   point_to_point [threads | ob1]    messages of several threads alone; what ob1 is known for is
//   forgiven
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

constexpr std::array<std::size_t, 11> kSizes{0,     1,     8,       100,     1000,   4096,
                                             16384, 16385, 100'000, 1 << 20, 5 << 20};

std::vector<unsigned char> pattern(std::size_t n, std::size_t seed) {
  std::vector<unsigned char> bytes(n);
  for (std::size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<unsigned char>(i * 31 + i / 509 + seed * 17);
  return bytes;
}

bool wait_until_received(MPI_Request* request, MPI_Status* status) {
  int done = 0;
  while (done == 0) MUST(MPI_Test(request, &done, status));
  return true;
}

class Exchange {
 public:
  Exchange(MPI_Comm comm, bool ob1) : comm_(comm), ob1_(ob1) {}

  void run() {
    ring();
    ways_to_send();
    probes();
    matched_probes();
    any_source();
    order();
    persistent();
    cancel();
    truncated();
    to_oneself();
    types();
    nobody();
  }

 private:
  int count_of(const MPI_Status& status) const {
    int n = 0;
    MUST(MPI_Get_count(&status, MPI_BYTE, &n));
    return n;
  }

  /// Everybody sends to the next and receives from the one before, with all sizes under way at
  /// once.
  void ring() {
    std::vector<std::vector<unsigned char>> in, out;
    std::vector<MPI_Request> requests;
    for (const bool receives_first : {true, false}) {
      in.clear(), out.clear(), requests.clear();
      for (const std::size_t n : kSizes) {
        in.emplace_back(n);
        out.push_back(pattern(n, static_cast<std::size_t>(rank_) + n));
      }
      const auto receive = [&] {
        for (std::size_t k = 0; k < kSizes.size(); ++k) {
          requests.emplace_back();
          MUST(MPI_Irecv(in[k].data(), static_cast<int>(kSizes[k]), MPI_BYTE, left_,
                         static_cast<int>(k), comm_, &requests.back()));
        }
      };
      if (receives_first) receive();
      for (std::size_t k = kSizes.size(); k-- > 0;) {  // not in the order of the receives
        requests.emplace_back();
        MUST(MPI_Isend(out[k].data(), static_cast<int>(kSizes[k]), MPI_BYTE, right_,
                       static_cast<int>(k), comm_, &requests.back()));
      }
      if (!receives_first) {
        MUST(MPI_Barrier(comm_));
        receive();
      }
      MUST(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
      for (std::size_t k = 0; k < kSizes.size(); ++k) {
        EXPECT(in[k] == pattern(kSizes[k], static_cast<std::size_t>(left_) + kSizes[k]));
      }
    }
  }

  void ways_to_send() {
    std::vector<unsigned char> space(8 << 20);
    MUST(MPI_Buffer_attach(space.data(), static_cast<int>(space.size())));
    for (const std::size_t n : kSizes) {
      const int bytes = static_cast<int>(n);
      std::vector<unsigned char> in(n);
      const auto out = pattern(n, 3);
      const auto send = {&MPI_Isend, &MPI_Issend, &MPI_Ibsend, &MPI_Irsend};
      for (const auto& way : send) {
        MPI_Request receive{}, sent{};
        MUST(MPI_Irecv(in.data(), bytes, MPI_BYTE, left_, 5, comm_, &receive));
        if (way == &MPI_Irsend) MUST(MPI_Barrier(comm_));  // its receive must be posted
        MUST(way(out.data(), bytes, MPI_BYTE, right_, 5, comm_, &sent));
        MPI_Status status{};
        EXPECT(wait_until_received(&receive, &status));
        EXPECT(status.MPI_SOURCE == left_ && status.MPI_TAG == 5 && count_of(status) == bytes);
        MUST(MPI_Wait(&sent, MPI_STATUS_IGNORE));
        EXPECT(in == out);
        std::fill(in.begin(), in.end(), 0);
      }
      MUST(MPI_Sendrecv(out.data(), bytes, MPI_BYTE, right_, 6, in.data(), bytes, MPI_BYTE, left_,
                        6, comm_, MPI_STATUS_IGNORE));
      EXPECT(in == out);
      in = pattern(n, static_cast<std::size_t>(rank_));
      MUST(MPI_Sendrecv_replace(in.data(), bytes, MPI_BYTE, right_, 7, left_, 7, comm_,
                                MPI_STATUS_IGNORE));
      EXPECT(in == pattern(n, static_cast<std::size_t>(left_)));
    }
    void* back = nullptr;
    int size = 0;
    MUST(MPI_Buffer_detach(&back, &size));

    // A synchronous send is not complete before its receive is there.
    if (rank_ == 0) {
      MPI_Request sent{};
      int done = 1;
      MUST(MPI_Issend(nullptr, 0, MPI_BYTE, right_, 8, comm_, &sent));
      for (int i = 0; i < 1000; ++i) MUST(MPI_Test(&sent, &done, MPI_STATUS_IGNORE));
      EXPECT(done == 0);
      MUST(MPI_Send(nullptr, 0, MPI_BYTE, right_, 9, comm_));
      MUST(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    } else if (rank_ == 1) {
      MUST(MPI_Recv(nullptr, 0, MPI_BYTE, 0, 9, comm_, MPI_STATUS_IGNORE));
      MUST(MPI_Recv(nullptr, 0, MPI_BYTE, 0, 8, comm_, MPI_STATUS_IGNORE));
    }
    MUST(MPI_Barrier(comm_));
  }

  void probes() {
    int there = 1;
    MUST(MPI_Iprobe(MPI_ANY_SOURCE, 77, comm_, &there, MPI_STATUS_IGNORE));
    EXPECT(there == 0);
    for (const std::size_t n : kSizes) {
      const auto out = pattern(n, 4);
      MPI_Request sent{};
      MUST(MPI_Isend(out.data(), static_cast<int>(n), MPI_BYTE, right_, 10, comm_, &sent));
      MPI_Status status{};
      if (n % 2 == 0) {
        MUST(MPI_Probe(left_, MPI_ANY_TAG, comm_, &status));
      } else {
        for (there = 0; there == 0;) MUST(MPI_Iprobe(MPI_ANY_SOURCE, 10, comm_, &there, &status));
      }
      EXPECT(status.MPI_TAG == 10 && status.MPI_SOURCE == left_ &&
             count_of(status) == static_cast<int>(n));
      std::vector<unsigned char> in(n);
      MUST(MPI_Recv(in.data(), static_cast<int>(n), MPI_BYTE, left_, 10, comm_, MPI_STATUS_IGNORE));
      EXPECT(in == out);
      MUST(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    }
  }

  /// What has been claimed is nobody else's, though a later message has the same tag.
  void matched_probes() {
    for (const std::size_t n : kSizes) {
      const auto first = pattern(n, 1), second = pattern(n, 2);
      const int bytes = static_cast<int>(n);
      std::array<MPI_Request, 2> sent{};
      MUST(MPI_Isend(first.data(), bytes, MPI_BYTE, right_, 11, comm_, &sent[0]));
      MUST(MPI_Isend(second.data(), bytes, MPI_BYTE, right_, 11, comm_, &sent[1]));
      MPI_Message message{};
      MPI_Status status{};
      if (n % 2 == 0) {
        MUST(MPI_Mprobe(left_, 11, comm_, &message, &status));
      } else {
        for (int there = 0; there == 0;)
          MUST(MPI_Improbe(left_, 11, comm_, &there, &message, &status));
      }
      EXPECT(count_of(status) == bytes);
      std::vector<unsigned char> later(n), claimed(n);
      MUST(MPI_Recv(later.data(), bytes, MPI_BYTE, left_, 11, comm_, MPI_STATUS_IGNORE));
      if (n % 4 == 0) {
        MUST(MPI_Mrecv(claimed.data(), bytes, MPI_BYTE, &message, &status));
      } else {
        MPI_Request request{};
        MUST(MPI_Imrecv(claimed.data(), bytes, MPI_BYTE, &message, &request));
        MUST(MPI_Wait(&request, &status));
      }
      EXPECT(claimed == first && later == second && message == MPI_MESSAGE_NULL);
      MUST(MPI_Waitall(2, sent.data(), MPI_STATUSES_IGNORE));
    }
  }

  /// Rank 0 takes what comes, from any rank; the others cannot wait for each other.
  void any_source() {
    constexpr int kEach = 200;
    if (rank_ == 0) {
      std::vector<int> next(static_cast<std::size_t>(size_));
      for (int left = kEach * (size_ - 1); left > 0; --left) {
        std::array<int, 2> got{};
        MPI_Status status{};
        MUST(MPI_Recv(got.data(), 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &status));
        EXPECT(got[0] == status.MPI_SOURCE && status.MPI_TAG == got[1] % 3);
        EXPECT(got[1] == next[static_cast<std::size_t>(got[0])]++);
      }
    } else {
      for (int i = 0; i < kEach; ++i) {
        const std::array<int, 2> what{rank_, i};
        MUST(MPI_Send(what.data(), 2, MPI_INT, 0, i % 3, comm_));
      }
    }
    MUST(MPI_Barrier(comm_));
  }

  /// Messages of one tag do not overtake each other, whatever their sizes; thousands may wait.
  void order() {
    constexpr int kMessages = 3000;
    std::vector<MPI_Request> sent(kMessages);
    const auto size_of_message = [](int i) { return i % 50 == 7 ? 5000 : 1 + i % 3; };
    std::vector<std::vector<int>> out;
    for (int i = 0; i < kMessages; ++i)
      out.emplace_back(static_cast<std::size_t>(size_of_message(i)), i);
    for (int i = 0; i < kMessages; ++i) {
      MUST(MPI_Isend(out[static_cast<std::size_t>(i)].data(), size_of_message(i), MPI_INT, right_,
                     12, comm_, &sent[static_cast<std::size_t>(i)]));
    }
    std::vector<int> in(5000);
    for (int i = 0; i < kMessages; ++i) {
      MPI_Status status{};
      MUST(MPI_Recv(in.data(), 5000, MPI_INT, left_, 12, comm_, &status));
      int n = 0;
      MUST(MPI_Get_count(&status, MPI_INT, &n));
      EXPECT(n == size_of_message(i) && in[0] == i && in[static_cast<std::size_t>(n) - 1] == i);
    }
    MUST(MPI_Waitall(kMessages, sent.data(), MPI_STATUSES_IGNORE));
  }

  void persistent() {
    std::vector<int> out(30'000), in(30'000);
    std::array<MPI_Request, 2> requests{};
    MUST(MPI_Recv_init(in.data(), 30'000, MPI_INT, left_, 13, comm_, &requests[0]));
    MUST(MPI_Send_init(out.data(), 30'000, MPI_INT, right_, 13, comm_, &requests[1]));
    for (int round = 0; round < 20; ++round) {
      std::fill(out.begin(), out.end(), rank_ * 100 + round);
      MUST(MPI_Startall(2, requests.data()));
      MUST(MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE));
      EXPECT(std::count(in.begin(), in.end(), left_ * 100 + round) == 30'000);
    }
    for (MPI_Request& request : requests) MUST(MPI_Request_free(&request));
  }

  void cancel() {
    int in = 1, out = 2, cancelled = 0;
    MPI_Request never{}, receive{};
    MPI_Status status{};
    MUST(MPI_Irecv(&in, 1, MPI_INT, left_, 14, comm_, &never));
    MUST(MPI_Cancel(&never));
    MUST(MPI_Wait(&never, &status));
    MUST(MPI_Test_cancelled(&status, &cancelled));
    EXPECT(cancelled != 0 && in == 1);
    MUST(MPI_Barrier(comm_));  // only now: the cancelled receive must not get this one
    MUST(MPI_Irecv(&in, 1, MPI_INT, left_, 14, comm_, &receive));
    MUST(MPI_Send(&out, 1, MPI_INT, right_, 14, comm_));
    MUST(MPI_Wait(&receive, MPI_STATUS_IGNORE));
    EXPECT(in == 2);
  }

  /// Too long for its receive: an error, nothing behind the buffer, and the next message is well.
  void truncated() {
    MPI_Comm lenient{};
    MUST(MPI_Comm_dup(comm_, &lenient));
    MUST(MPI_Comm_set_errhandler(lenient, MPI_ERRORS_RETURN));
    for (const std::size_t n : {std::size_t{100}, std::size_t{100'000}}) {
      const auto out = pattern(n, 5);
      std::vector<unsigned char> in(n);
      MPI_Request sent{};
      MUST(MPI_Isend(out.data(), static_cast<int>(n), MPI_BYTE, right_, 15, lenient, &sent));
      int code = MPI_Recv(in.data(), 60, MPI_BYTE, left_, 15, lenient, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) MUST(MPI_Error_class(code, &code));
      EXPECT(code == MPI_ERR_TRUNCATE);
      const bool untouched =
          std::all_of(in.begin() + 60, in.end(), [](unsigned char c) { return c == 0; });
      // ob1 writes it all, over any transport that can get
      EXPECT(untouched || (ob1_ && n > 60'000));
      MUST(MPI_Wait(&sent, MPI_STATUS_IGNORE));
      MUST(MPI_Sendrecv(out.data(), 8, MPI_BYTE, right_, 16, in.data(), 8, MPI_BYTE, left_, 16,
                        lenient, MPI_STATUS_IGNORE));
      EXPECT(std::equal(in.begin(), in.begin() + 8, out.begin()));
    }
    MUST(MPI_Comm_free(&lenient));
  }

  void to_oneself() {
    for (const std::size_t n : kSizes) {
      const auto out = pattern(n, 6);
      std::vector<unsigned char> in(n);
      MPI_Request receive{};
      MUST(MPI_Irecv(in.data(), static_cast<int>(n), MPI_BYTE, rank_, 17, comm_, &receive));
      MUST(MPI_Send(out.data(), static_cast<int>(n), MPI_BYTE, rank_, 17, comm_));
      MUST(MPI_Wait(&receive, MPI_STATUS_IGNORE));
      EXPECT(in == out);
    }
  }

  /// A column of a matrix becomes a row; a structure with a gap keeps what is in the gap.
  void types() {
    constexpr int kRows = 300, kColumns = 40;
    std::vector<double> matrix(kRows * kColumns), column(kRows);
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<double>(i);
    MPI_Datatype strided{};
    MUST(MPI_Type_vector(kRows, 1, kColumns, MPI_DOUBLE, &strided));
    MUST(MPI_Type_commit(&strided));
    MUST(MPI_Sendrecv(matrix.data() + 3, 1, strided, right_, 18, column.data(), kRows, MPI_DOUBLE,
                      left_, 18, comm_, MPI_STATUS_IGNORE));
    bool same = true;
    for (int i = 0; i < kRows; ++i)
      same = same && column[static_cast<std::size_t>(i)] == 3 + i * kColumns;
    EXPECT(same);
    MUST(MPI_Type_free(&strided));

    struct Record {
      char name[5];
      double number;
    };
    std::vector<Record> out(1000), in(1000);
    std::memset(static_cast<void*>(in.data()), 0x5a, in.size() * sizeof(Record));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = {"name", static_cast<double>(i)};
    const int counts[] = {5, 1};
    const MPI_Aint places[] = {offsetof(Record, name), offsetof(Record, number)};
    const MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE};
    MPI_Datatype record{};
    MUST(MPI_Type_create_struct(2, counts, places, parts, &record));
    MUST(MPI_Type_commit(&record));
    MUST(MPI_Sendrecv(out.data(), 1000, record, right_, 19, in.data(), 1000, record, left_, 19,
                      comm_, MPI_STATUS_IGNORE));
    for (std::size_t i = 0; i < in.size(); i += 37) {
      EXPECT(std::strcmp(in[i].name, "name") == 0 && in[i].number == static_cast<double>(i));
      EXPECT(reinterpret_cast<const unsigned char*>(&in[i])[6] == 0x5a);
    }
    MUST(MPI_Type_free(&record));
  }

  void nobody() {
    int in = 3;
    MPI_Status status{};
    MUST(MPI_Send(&in, 1, MPI_INT, MPI_PROC_NULL, 20, comm_));
    MUST(MPI_Recv(&in, 1, MPI_INT, MPI_PROC_NULL, 20, comm_, &status));
    EXPECT(in == 3 && status.MPI_SOURCE == MPI_PROC_NULL && count_of(status) == 0);
  }

  MPI_Comm comm_;
  bool ob1_;
  int rank_ = rank_in(comm_);
  int size_ = size_of(comm_);
  int left_ = (rank_ + size_ - 1) % size_;
  int right_ = (rank_ + 1) % size_;
};

/// Four threads of each rank, each with the one of its number in the next rank. Counted by hand:
/// EXPECT's counter belongs to the main thread.
void threads(MPI_Comm comm) {
  const int rank = rank_in(comm), size = size_of(comm);
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        std::vector<int> out(static_cast<std::size_t>(i % 10 == 0 ? 20'000 : 10),
                             rank * 10'000 + t * 1000 + i);
        std::vector<int> in(out.size());
        const int n = static_cast<int>(out.size());
        if (MPI_Sendrecv(out.data(), n, MPI_INT, right, 100 + t, in.data(), n, MPI_INT, left,
                         100 + t, comm, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            std::count(in.begin(), in.end(), left * 10'000 + t * 1000 + i) != n) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  EXPECT(wrong == 0);
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  using namespace clan::test::mpi;
  const bool threaded = argc > 1 && std::strcmp(argv[1], "threads") == 0;
  const bool ob1 = argc > 1 && std::strcmp(argv[1], "ob1") == 0;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, threaded ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  if (threaded) {
    EXPECT(provided == MPI_THREAD_MULTIPLE);
    threads(MPI_COMM_WORLD);
  } else {
    Exchange(MPI_COMM_WORLD, ob1).run();
    MPI_Comm twin{};
    MUST(MPI_Comm_dup(MPI_COMM_WORLD, &twin));
    Exchange(twin, ob1).run();
    MUST(MPI_Comm_free(&twin));
  }
  return finish("point_to_point");
}
