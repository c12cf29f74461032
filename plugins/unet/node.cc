#include "node.h"

#include <clan/detail/fork_lock.h>
#include <clan/detail/words.h>
#include <clan/face/counter_page.h>
#include <unistd.h>

#include <vector>

#include "port.h"

namespace clan::unet::library {
namespace {

std::atomic<std::uint32_t> forks{1};
std::mutex rows_mutex;
UnetPage* page = nullptr;  // of this process; never unmapped
std::vector<UnetRow*> free_rows;
std::uint64_t endpoints_made = 0;

void in_child() {
  page = nullptr;
  free_rows.clear();
  words::add(forks, 1u);
}

// Behind the engine's, as in every face: fork takes this lock before those of the engine.
void watch_forks() { (void)hold_over_forks<rows_mutex, in_child>(); }

}  // namespace

std::uint32_t generation() {
  return forks.load(std::memory_order_relaxed);  // relaxed: a child begins with one thread
}

UnetRow* take_row() {
  std::lock_guard lock(rows_mutex);
  if (page == nullptr) page = make_counter_page<UnetPage>(kUnetMemfdName);
  UnetRow* row;
  if (!free_rows.empty()) {
    row = free_rows.back();
    free_rows.pop_back();
    for (auto* counter :
         {&row->sent, &row->sent_bytes, &row->received, &row->received_bytes, &row->dropped_buffer,
          &row->dropped_queue, &row->dropped_tag, &row->returned, &row->deferrals}) {
      counter->store(0, std::memory_order_relaxed);  // relaxed: for people
    }
  } else if (const std::uint32_t used = words::load_acquire(page->rows); used < UnetPage::kRows) {
    row = &page->row[used];
    words::store_release(page->rows, used + 1);
  } else {
    row = new UnetRow;
  }
  row->number.store(++endpoints_made, std::memory_order_relaxed);  // relaxed: for people
  words::store_release(row->open, 1u);
  return row;
}

void give_back(UnetRow* row) {
  std::lock_guard lock(rows_mutex);
  words::store_release(row->open, 0u);
  free_rows.push_back(row);
}

void count_hostile() {
  if (page != nullptr)
    page->hostile.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
}

}  // namespace clan::unet::library

unet_node::unet_node(clan::Context made)
    : context(std::move(made)), generation(clan::unet::library::generation()) {
  clan::unet::library::watch_forks();
}
unet_node::~unet_node() = default;

clan::Status unet_node::translate() {
  std::lock_guard lock(mutex);
  if (translator) return {};
  auto made = clan::Translator::of(context);
  if (!made) return made.error();
  translator.emplace(std::move(*made));
  return {};
}
