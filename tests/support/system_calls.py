"""Whether stretches of work make no system call, by strace's log of the processes that do it."""

import bisect

# Without stopping at sched_yield: strace would run in each, so a thread that waits would find
# itself in a crowd, and yield on. What a wait yields is not counted.
STRACE = ("-f", "-ttt", "--seccomp-bpf", "-e", "trace=!sched_yield", "-o")


def made_at(file):
    """When system calls were made, by strace's log: PID TIME CALL."""
    with open(file) as text:
        return [float(line.split()[1]) for line in text]


def counts(times, *logs):
    """How many system calls any of the logs has in each stretch between `times`. A thread that
    makes one waits until strace has noted it: so it is noted within the stretch in which it was
    made."""
    made = sorted(at for log in logs for at in made_at(log))
    return [bisect.bisect_right(made, end) - bisect.bisect_left(made, begin)
            for begin, end in zip(times, times[1:])]


def quiet_stretches(times, logs):
    """How many stretches there are between `times`, and how many of them without a system call in
    any of the logs."""
    return len(times) - 1, counts(times, *logs).count(0)
