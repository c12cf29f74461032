// The questions clan-bench answers, one function and one *_bench.cc each (listed in main.cc).
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

}  // namespace clan::bench
