// Uses a header-only part and a symbol of the library, so that both must be found.
#include <clan/result.h>
#include <clan/version.h>

#include <cstdio>

int main() {
  clan::Result<int> answer = 42;
  if (!answer.ok() || *answer != 42) return 1;
  std::printf("consumer: libclan %s\n", clan::version());
  return 0;
}
