// The questions clan-bench answers, listed in main.cc, and what is made of their rows.
#pragma once

#include "support/context.h"

namespace clan::bench {

void cacheline(Context& context);
void ring_bound(Context& context);
void stream_latency(Context& context);
void message_latency(Context& context);
void bandwidth(Context& context);
void message_rate(Context& context);
void pio_write(Context& context);
void wakeup(Context& context);
void same_core(Context& context);
void oversubscribed(Context& context);
void idle_endpoints(Context& context);
void offered_load(Context& context);
void rdma_copy(Context& context);
void rdma_fairness(Context& context);
void ucx(Context& context);
void idle_cost(Context& context);
void via(Context& context);             ///< in via/, where libvipl is built
void vmmc_questions(Context& context);  ///< in vmmc/, where libclanvmmc is built
void unet(Context& context);            ///< in unet/, where libclanunet is built

/// The short comparison of CLAN with TCP and UNIX sockets: measures and prints.
void quick(Context& context);

/// Whether a question's rows are needed for a bar.
bool bars_need(const std::string& question);
/// What is wanted of each bar, and whether it is met. A bar against a kernel socket that blocks
/// also has the ratio to one that polls, where that was measured.
std::vector<Verdict> bars(const Results& results);
/// One line per bar.
std::string bars_table(const std::vector<Verdict>& bars);

}  // namespace clan::bench
