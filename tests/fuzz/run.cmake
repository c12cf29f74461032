# Runs FUZZER for SECONDS from the inputs in SEEDS and in FOUND, where it puts new ones. What fails
# is left in FOUND as crash-…, leak-… or timeout-….
# No names of new functions: for them libFuzzer starts a symbolizer in the middle of a run and keeps
# two pipes to it, which fuzz.offer counts.
file(MAKE_DIRECTORY ${FOUND})
execute_process(
  COMMAND ${FUZZER} -seed=${SEED} -max_total_time=${SECONDS} -timeout=20 -print_final_stats=1
          -print_funcs=0 -artifact_prefix=${FOUND}/ ${FOUND} ${SEEDS}
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${FUZZER} has found something: run it with the file named above")
endif()
