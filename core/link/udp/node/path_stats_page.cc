#include "link/udp/node/path_stats_page.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "clan/detail/words.h"
#include "link/udp/node/udp_link.h"

namespace clan::udp {

Result<std::unique_ptr<PathStatsPage>> PathStatsPage::create(Mode mode) {
  auto file = create_memfd(kPathMemfdName, round_to_pages(sizeof(PathPage)));
  if (!file) return file.error();
  auto memory =
      Mapping::map(file->get(), round_to_pages(sizeof(PathPage)), Mapping::Access::kReadWrite);
  if (!memory) return memory.error();
  auto* page = new (memory->data()) PathPage;
  page->pid = static_cast<std::uint64_t>(::getpid());
  page->mode = static_cast<std::uint64_t>(mode);
  return std::unique_ptr<PathStatsPage>(new PathStatsPage(std::move(*file), std::move(*memory)));
}

void PathStatsPage::set_port(std::uint16_t port) {
  page().port.store(port, std::memory_order_relaxed);  // relaxed: a number
}

void PathStatsPage::add(const UdpLink* link) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].link != nullptr) continue;
    entries_[i] = {link, link->packets()};
    write(i, link->path());
    return;
  }
  page().not_shown.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
}

void PathStatsPage::remove(const UdpLink* link) {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.link == link; });
  if (it == entries_.end()) {
    page().not_shown.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a statistic
    return;
  }
  *it = {};
  write(static_cast<std::size_t>(it - entries_.begin()), {});
}

void PathStatsPage::show() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.link == nullptr) continue;
    const std::uint64_t packets = entry.link->packets();
    if (std::exchange(entry.packets, packets) != packets) write(i, entry.link->path());
  }
}

// One stays behind in a row that its writer left half-way: its reader leaves the row out.
void PathStatsPage::write(std::size_t i, const PathValues& values) {
  PathRow& row = page().rows[i];
  const std::uint64_t number = row.begin.load(std::memory_order_relaxed) + 1;  // relaxed: ours
  // PAIR path_page.row: in this order, as the reader reads the other way round
  words::store_release(row.end, number);
  const auto* from = reinterpret_cast<const std::uint64_t*>(&values);
  for (std::size_t word = 0; word < PathRow::kWords; ++word) {
    words::store_release(row.words[word], from[word]);  // PAIR path_page.row: after `end`
  }
  words::store_release(row.begin, number);  // PAIR path_page.row: publishes the values
}

void PathStatsPage::abandon_after_fork() { file_.reset(); }

}  // namespace clan::udp
