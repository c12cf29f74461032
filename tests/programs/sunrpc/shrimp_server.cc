// A server of every.x by clan-rpcgen's stubs: shrimp-server NAME. Says "ready" when it serves.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "every.h"

namespace {
clan_shrimp_server* server = nullptr;
int told = 0;
}  // namespace

extern "C" {

int nullproc_new_2_svc(void*, void*, clan_shrimp_call*) { return 1; }
int every_null_1_svc(void*, void*, clan_shrimp_call*) { return 1; }
int every_negate_1_svc(int* argument, int* result, clan_shrimp_call*) {
  *result = -*argument;
  return 1;
}
int negate_2_svc(int* argument, int* result, clan_shrimp_call*) {
  *result = -*argument;
  return 1;
}
int echo_2_svc(blob* argument, blob* result, clan_shrimp_call*) {
  *result = *argument;  // handed over: both are freed
  std::memset(argument, 0, sizeof *argument);
  return 1;
}
int turn_2_svc(everything* argument, everything* result, clan_shrimp_call*) {
  *result = *argument;
  std::memset(argument, 0, sizeof *argument);
  result->one.a = -result->one.a;
  for (int& n : result->fixed) n = -n;
  return 1;
}
int maybe_2_svc(everything* argument, answer* result, clan_shrimp_call*) {
  result->status = argument->one.a == 0 ? 1 : 0;
  if (result->status != 0) return 1;
  result->answer_u.same = *argument;
  std::memset(argument, 0, sizeof *argument);
  return 1;
}
int count_2_svc(blob* argument, u_int* result, clan_shrimp_call*) {
  u_int sum = 0;
  for (u_int i = 0; i < argument->blob_len; ++i)
    sum += static_cast<unsigned char>(argument->blob_val[i]);
  *result = sum;
  return 1;
}
int who_2_svc(void*, credential* result, clan_shrimp_call* call) {
  result->uid = clan_shrimp_caller_uid(call);
  result->machine = strdup("");
  return 1;
}
int tell_2_svc(int* argument, void*, clan_shrimp_call*) {
  told += *argument;
  return 1;
}
int told_2_svc(void*, int* result, clan_shrimp_call*) {
  *result = told;
  return 1;
}
int sleep_2_svc(int* argument, int* result, clan_shrimp_call*) {
  usleep(static_cast<useconds_t>(*argument) * 1000);
  *result = *argument;
  return 1;
}
int call_back_2_svc(u_int*, int*, clan_shrimp_call*) { return 0; }
int forked_2_svc(int*, int*, clan_shrimp_call*) { return 0; }
int leave_2_svc(int* argument, void*, clan_shrimp_call*) {
  if (*argument == 0)
    clan_shrimp_stop(server);
  else
    raise(*argument);
  return 1;
}
int shorten_2_svc(int* value, int* result, clan_shrimp_call*) {
  *result = *value;
  return 1;
}
int served_2_svc(void*, quad_t* result, clan_shrimp_call*) {
  *result = 0;
  return 1;
}

}  // extern "C"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  server = clan_shrimp_listen(argv[1], &every_2_service);
  if (server == nullptr) {
    std::perror("clan_shrimp_listen");
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  const int status = clan_shrimp_serve(server, -1);
  clan_shrimp_destroy(server);
  return status == 0 ? 0 : 1;
}
